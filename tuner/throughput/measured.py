"""Rates and links from what a worker measured, in place of the catalogue's: any GPU, and CPU ranks."""

from collections import defaultdict
from dataclasses import replace
from statistics import fmean

from api_schemas.hardware import Cluster, MeasuredHardware
from tuner.throughput.rates import CPU_NETWORK, CPU_RATES, Network, Rates

_SUSTAINED = 0.9
"""Of a single large product's rate, over the shapes of a training step."""
_ATTENTION = 0.55
"""Attention kernels over large products: 0.5-0.67 on the GPUs of the catalogue (tuner.throughput.rates)."""


def measured_rates(measured: MeasuredHardware, device: str, in_fp32: bool) -> Rates:
    """Achieved rates; what was not measured (overlap, contention) is the generic GPU's, or the CPU ranks'."""
    flops = (measured.fp32_flops if in_fp32 else measured.bf16_flops) * _SUSTAINED
    on_cpu = device == "cpu"
    return Rates(
        matmul_flops=flops,
        attention_flops=flops * _ATTENTION,
        memory_bytes=measured.copy_bytes_per_s,
        launch_s=measured.launch_s,
        overlap=CPU_RATES.overlap if on_cpu else 0.85,
        contention=CPU_RATES.contention if on_cpu else 0.12,
        serial=on_cpu,
        optimizer_host_s=CPU_RATES.optimizer_host_s if on_cpu else 0.012,
    )


def measured_network(measured: MeasuredHardware, cluster: Cluster, fallback: Network) -> Network:
    """Links of one node by the sizes measured; links between nodes are not measured.

    A ring moves (n-1)/n of the bytes through each rank's link, and an all-reduce does so twice.
    """
    ranks = cluster.gpus_per_node
    host_link = measured.host_link_bytes_per_s or fallback.host_link
    seconds: dict[float, list[float]] = defaultdict(list)
    for one in measured.collectives:
        passes = 2 if one.operation == "all_reduce" else 1
        seconds[one.bytes * (ranks - 1) / ranks].append(one.seconds / passes)
    curve = tuple((size, fmean(times)) for size, times in sorted(seconds.items()) if size > 0)
    return replace(fallback, gpus_per_node=ranks, host_link=host_link, measured=curve)


def fallback_network(cluster: Cluster) -> Network:
    """Where nothing else is known: the cluster's own figures, else those of gloo or PCIe."""
    if cluster.device == "cpu":
        return Network(CPU_NETWORK.intra, CPU_NETWORK.inter, cluster.gpus_per_node, CPU_NETWORK.host_link)
    return Network(
        intra=(cluster.intra_node_gb_per_s or 12.0) * 1e9,
        inter=(cluster.inter_node_gb_per_s or 12.5) * 1e9 / cluster.gpus_per_node,
        gpus_per_node=cluster.gpus_per_node,
        host_link=(cluster.host_link_gb_per_s or 12.0) * 1e9,
    )
