"""Rates that a GPU and its links achieve in training, as fractions of their nominal figures: the predictor's few fitted
numbers.

Each number is physical (a rate or a cost per launch); `tuner.prediction.calibration` scales them for one machine. Their
derivation and their errors on sources left out of the fit are in docs/measurements/predictor.md.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from shardtune.api_schemas.machines.gpus import GpuModel
from shardtune.api_schemas.machines.hardware import Cluster


@dataclass(frozen=True)
class Rates:
    """Rates that one GPU achieves in training, per second."""

    matmul_flops: float
    """FLOPs per second of large bf16 matrix products inside a training step."""
    attention_flops: float
    """FLOPs per second of the attention kernel's forward, counting only the causal half."""
    memory_bytes: float
    """Bytes per second moved by elementwise kernels."""
    launch_s: float
    """Host seconds to launch one kernel of an eager program, which limit the speed of small models."""
    small_matmul: float = 96.0
    """Inner dimension at which a matrix product reaches half of its peak rate (prologue, epilogue, partial waves)."""
    bf16_flops: float | None = None
    """FLOPs per second of bf16 matrix products, if the workload's own products are in another dtype. If None,
    `matmul_flops` applies."""
    fp8_gain: float = 1.25
    """Speed-up of fp8 linear layers over bf16 layers, with casts and scaling included. Rows were published only for
    H100: with 1.5, the speeds of three sources were predicted 1.06 to 1.20 times too high there. No row of another GPU
    supports a higher value."""
    overlap: float = 0.85
    """Fraction of the time of backward (or forward) with which communication can overlap."""
    contention: float = 0.12
    """Seconds by which computation slows down per second of concurrent communication."""
    serial: bool = False
    """Whether the core that launches an operator also executes it, as on CPU ranks, so that launches cannot overlap
    with execution."""
    optimizer_host_s: float = 0.012
    """Host seconds of an optimizer step that no kernel accounts for: clipping, foreach lists, logging, the data
    loader."""
    fresh_bytes: float = math.inf
    """Bytes per second at which memory that the system has just provided can be written for the first time: on CPU
    ranks the first write to each page causes a page fault."""

    def on_host(self, factor: float) -> "Rates":
        """Rates of the same GPU on a host that takes `factor` times as long to launch a kernel."""
        return self if factor == 1.0 else replace(self, launch_s=self.launch_s * factor)

    def in_fp32(self, architecture: str) -> "Rates":
        """Rates of the same GPU for fp32 matrix products without TF32. They run on the vector units, whose rate is a
        fraction of the bf16 peak."""
        vector_fraction = 0.2 if architecture in ("volta", "turing") else 0.0725
        return replace(
            self,
            matmul_flops=self.matmul_flops * vector_fraction,
            bf16_flops=self.matmul_flops,
            attention_flops=self.attention_flops * vector_fraction,
        )


Curve = tuple[tuple[float, float], ...]
"""Measured times of a collective, as points (bytes through a rank's link in one pass, seconds of the call) by rising
size."""


@dataclass(frozen=True)
class Uplinks:
    """Links from leaf switches to the rest of an oversubscribed network, as a user states them. Nobody measured them."""

    nodes_per_leaf: int
    oversubscription: float
    """Bandwidth of the nodes below a leaf switch, divided by the bandwidth of its uplinks."""
    job_ranks: NDArray[np.float64] | float = math.inf
    """Number of ranks of the whole job, which are placed leaf by leaf."""
    scattered: bool = False
    """Whether neighbouring nodes of the job are below different leaf switches, so that all traffic between nodes uses
    uplinks."""
    in_measurements: float = 1.0
    """Fraction of a node's network that rings had while collectives were measured, by the figures stated of the cluster
    on which they were measured."""


@dataclass(frozen=True)
class Network:
    """Bandwidths that a collective can use, in bytes per second per GPU and direction."""

    intra: float
    inter: float
    """Bandwidth between nodes per GPU: the bandwidth of a node's network divided by its number of GPUs."""
    gpus_per_node: int
    host_link: float
    intra_latency_s: float = 15e-6
    inter_latency_s: float = 30e-6
    intra_hop_s: float = 3.4e-6
    """Seconds from one rank of a ring to the next within a node (NCCL 2.19 `graph/tuning.cc`, `hwLat`: Simple over
    NVLink)."""
    inter_hop_s: float = 14e-6
    """Seconds from one rank of a ring to the next between nodes (NCCL 2.19 `graph/tuning.cc`, `hwLat`: NET)."""
    inter_step_s: float = 50e-6
    """Seconds of one step of a ring that spans nodes, where every call is waited for. Tensor-parallel exchanges of 16
    and 32 H100 over EFA take 0.9 and 1.9 ms each, whatever their size (docs/measurements/parallel.md)."""
    half_bytes: float = 16e6
    """Bytes of a message per rank at which a collective reaches half of the bandwidth (nccl-tests: 16-128 MiB per call
    for all-reduce)."""
    measured: Mapping[str, Curve] = field(default_factory=dict)
    """Measured times of collectives within a node by operation (curves over message size), which are used instead of
    the class's bandwidths."""
    across: Mapping[str, Curve] = field(default_factory=dict)
    """Measured times of collectives in groups with one rank on each node (curves over message size). All ranks of a
    node communicate at the same time, each in such a group of its own."""
    spanning: Mapping[str, Curve] = field(default_factory=dict)
    """Measured times of collectives over all ranks of several nodes (curves over message size)."""
    uplinks: Uplinks | None = None
    """Uplinks of leaf switches; None if they carry whatever the nodes send."""

    def for_job(self, ranks: NDArray[np.float64]) -> "Network":
        """Network as a job of so many ranks uses it, placed leaf by leaf. `ranks` has an entry for each candidate."""
        return self if self.uplinks is None else replace(self, uplinks=replace(self.uplinks, job_ranks=ranks))

    @property
    def with_scattered_nodes(self) -> "Network":
        """Network as a job uses it whose neighbouring nodes are below different leaf switches."""
        return self if self.uplinks is None else replace(self, uplinks=replace(self.uplinks, scattered=True))


# Fraction of the vendor's dense peak that matrix products reach. First factor: best of any shape
# (stas00/ml-engineering, compute/accelerator/README.md, in shared reference matmul.csv). Second: sustained over
# the shapes of a training step at the power limit. Hopper: with 0.79, three of five sources were predicted 1.06 to
# 1.14 times too fast (`tuner.prediction.throughput.published_bias`); with 0.74, those of nanotron and llm-foundry too slow.
_MATMUL = {
    "volta": 0.75 * 0.72, "turing": 0.75 * 0.72, "ampere": 0.869 * 0.90, "ada": 0.80 * 0.85, "hopper": 0.803 * 0.77,
    "blackwell": 0.776 * 0.85, "cdna2": 0.60 * 0.90, "cdna3": 0.514 * 0.95,
}  # fmt: skip
# FlashAttention-2 forward: 60-70 % of peak on A100, 35-40 % on H100 (arXiv:2307.08691, figures 5 and 6).
_ATTENTION = {
    "volta": 0.25, "turing": 0.25, "ampere": 0.58, "ada": 0.50, "hopper": 0.42, "blackwell": 0.40, "cdna2": 0.30,
    "cdna3": 0.25,
}  # fmt: skip
_HOST_S = {"volta": 11e-6, "turing": 11e-6, "ampere": 8e-6, "ada": 7e-6, "hopper": 6e-6, "blackwell": 5e-6}
_MEMORY = 0.82
"""Fraction of nominal memory bandwidth that elementwise kernels achieve (80-90 % of STREAM-like copies)."""
_LINK = 0.77
"""Ratio of the bus bandwidth of large collectives to nominal NVLink: 230/300 on A100, 350-370/450 on H100 and H200."""
_WIRE = 0.85


def rates_of(gpu: GpuModel) -> Rates:
    """Rates that a GPU of the catalogue achieves in training.

    Raises:
        ValueError: the catalogue lacks a figure that the rates need.
    """
    if gpu.peak_flops is None or gpu.memory_bytes_per_s is None:
        missing = "peak_bf16_tflops" if gpu.peak_flops is None else "memory_gb_per_s"
        raise ValueError(f"gpu ({gpu.name!r}) has no {missing} in the catalogue; enter it or let a worker measure it")
    power = _power_fraction(gpu.name)
    return Rates(
        matmul_flops=gpu.peak_flops * _MATMUL[gpu.architecture] * power,
        attention_flops=gpu.peak_flops * _ATTENTION[gpu.architecture] * power,
        memory_bytes=gpu.memory_bytes_per_s * _MEMORY,
        launch_s=_HOST_S.get(gpu.architecture, 8e-6),
    )


def _power_fraction(name: str) -> float:
    """Fraction of the clock that a GPU sustains under a lower power limit than the family's SXM card."""
    # A100 PCIe (300 of 400 W) reaches 0.93 of SXM's best product in matmul.csv, which is the fourth root of the power
    # ratio; sustained loads fall further.
    limits = {"500W": 500 / 700, "H100-PCIe": 350 / 700, "A100-PCIe": 300 / 400, "H100-NVL": 400 / 700}
    ratio = next((value for mark, value in limits.items() if mark in name), 1.0)
    return float(ratio**0.4)


def network_of(gpu: GpuModel, gpus_per_node: int) -> Network:
    """Return the bandwidths between GPUs, between nodes and to host memory that a GPU's entry in the catalogue has: those
    of a typical machine, or those that a cluster itself states (`catalogue.on_cluster`)."""
    return Network(
        intra=gpu.peer_bytes_per_s * _LINK,
        inter=gpu.network_bytes_per_s * _WIRE,
        gpus_per_node=gpus_per_node,
        host_link=gpu.host_link_bytes_per_s,
    )


CPU_RATES = Rates(
    matmul_flops=5e10, attention_flops=2e10, memory_bytes=5e9, launch_s=6e-6, overlap=0.0, contention=0.0,
    serial=True, optimizer_host_s=2e-3, fresh_bytes=3.4e9,
)  # fmt: skip
"""Rates of one CPU core, a starting point that trials calibrate. First use of a page of 4 KiB takes 1.2 µs (32 MiB
written once and again, AMD EPYC VM)."""
CPU_NETWORK = Network(
    intra=1e9,
    inter=1e8,
    gpus_per_node=1,
    host_link=5e9,
    intra_latency_s=2e-4,
    inter_latency_s=1e-3,
    intra_hop_s=0.0,
    inter_hop_s=0.0,
    inter_step_s=0.0,
    half_bytes=1e5,
)
"""Network of gloo on one machine, and between machines over a slow link."""


def with_uplinks(network: Network, cluster: Cluster, in_measurements: float = 1.0) -> Network:
    """Add the uplinks of a cluster's leaf switches to its network. A cluster that states no leaf switches, or none that
    are oversubscribed, keeps the network unchanged. `in_measurements`: fraction of a node's network that rings had while
    the network's collectives were measured."""
    leaf, oversubscription = cluster.nodes_per_leaf, cluster.oversubscription or 1.0
    if leaf is None or oversubscription <= 1.0:
        return network
    return replace(network, uplinks=Uplinks(leaf, oversubscription, in_measurements=in_measurements))


def ring_share(cluster: Cluster, nodes: int) -> float:
    """Fraction of a node's network that a ring over so many nodes of a cluster has, by the leaf switches that the cluster
    states."""
    leaf, oversubscription = cluster.nodes_per_leaf, cluster.oversubscription or 1.0
    return 1.0 if leaf is None or nodes <= leaf else min(leaf / oversubscription, 1.0)


def cluster_network(gpu: GpuModel, cluster: Cluster) -> Network:
    """Bandwidths of a cluster's links within and between nodes."""
    return network_of(gpu, cluster.gpus_per_node)
