"""Rates and links derived from a worker's measurements instead of the catalogue, for any GPU and for CPU ranks."""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from shardtune.api_schemas.machines.hardware import Cluster, CollectiveTime, MeasuredHardware
from shardtune.tuner.prediction.rates import CPU_NETWORK, CPU_RATES, Curve, Network, Rates

_PASSES = {"all_gather": 1.0, "reduce_scatter": 1.0, "all_reduce": 2.0}
_SUSTAINED = 0.9
"""Fraction of the measured rate of a large matrix product that is assumed for the smaller products of a training step."""
_ATTENTION = 0.55
"""Rate of attention kernels relative to large matrix products: 0.5-0.67 on the GPUs of the catalogue
(tuner.prediction.rates)."""


def measured_rates(measured: MeasuredHardware, device: str, in_fp32: bool) -> Rates:
    """Rates derived from a worker's measurements; figures that no worker measures (overlap, contention) are those of a
    generic GPU or of CPU ranks."""
    flops = (measured.fp32_flops if in_fp32 else measured.bf16_flops) * _SUSTAINED
    on_cpu = device == "cpu"
    return Rates(
        matmul_flops=flops,
        bf16_flops=measured.bf16_flops * _SUSTAINED,
        attention_flops=flops * _ATTENTION,
        memory_bytes=measured.copy_bytes_per_s,
        launch_s=measured.launch_s,
        overlap=CPU_RATES.overlap if on_cpu else 0.85,
        contention=CPU_RATES.contention if on_cpu else 0.12,
        serial=on_cpu,
        optimizer_host_s=CPU_RATES.optimizer_host_s if on_cpu else 0.012,
        fresh_bytes=CPU_RATES.fresh_bytes if on_cpu else math.inf,
    )


def measured_network(measured: MeasuredHardware, cluster: Cluster, fallback: Network) -> Network:
    """Bandwidths of the links within a node and between nodes, from the measured times of each collective."""
    by_group: dict[str, list[CollectiveTime]] = defaultdict(list)
    for collective in measured.collectives:
        by_group[
            "within" if collective.nodes == 1 else "across" if collective.ranks == collective.nodes else "spanning"
        ].append(collective)
    return replace(
        fallback,
        gpus_per_node=cluster.gpus_per_node,
        host_link=measured.host_link_bytes_per_s or fallback.host_link,
        measured=_curves(by_group["within"], cluster.gpus_per_node),
        across=_curves(by_group["across"], cluster.nodes),
        # With one rank on each node, those are all ranks.
        spanning=_curves(by_group["spanning"] or by_group["across"], cluster.world_size),
    )


def _curves(times: Sequence[CollectiveTime], ranks: int) -> dict[str, Curve]:
    """Measured times of collectives by operation (curves over message size). `ranks`: size of a group whose measurement
    does not state its size."""
    points: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for collective in times:
        group = collective.ranks or ranks
        size = collective.bytes * (group - 1) / group
        if size > 0:
            points[collective.operation].append((size, collective.seconds))
    curves = {operation: tuple(sorted(values)) for operation, values in points.items()}
    measured_operation = next(iter(points), None)
    # An operation without a measurement takes the time of a measured one, scaled by its passes of a ring.
    for operation, passes in _PASSES.items():
        if operation not in curves and measured_operation is not None:
            scale = passes / _PASSES[measured_operation]
            curves[operation] = tuple((size, scale * seconds) for size, seconds in curves[measured_operation])
    return curves


def fallback_network(cluster: Cluster) -> Network:
    """Bandwidths of a network without measurements: the cluster's own figures, otherwise those of gloo or PCIe."""
    if cluster.device == "cpu":
        return replace(CPU_NETWORK, gpus_per_node=cluster.gpus_per_node)
    return Network(
        intra=(cluster.intra_node_gb_per_s or 12.0) * 1e9,
        inter=(cluster.inter_node_gb_per_s or 12.5) * 1e9 / cluster.gpus_per_node,
        gpus_per_node=cluster.gpus_per_node,
        host_link=(cluster.host_link_gb_per_s or 12.0) * 1e9,
    )
