"""Rates and links from what a worker measured, in place of the catalogue's: any GPU, and CPU ranks."""

import math
from statistics import median

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
        optimizer_host_s=CPU_RATES.optimizer_host_s if on_cpu else 0.012,
    )


def measured_network(measured: MeasuredHardware, cluster: Cluster, fallback: Network) -> Network:
    """Links of one node: seconds = latency × log2(ranks) + bytes moved / bandwidth, by the smallest and largest sizes.

    A ring moves (n-1)/n of the bytes through each rank's link, and an all-reduce does so twice. Links between nodes
    are not measured.
    """
    ranks = cluster.gpus_per_node
    host_link = measured.host_link_bytes_per_s or fallback.host_link
    if ranks < 2 or not measured.collectives:
        return Network(fallback.intra, fallback.inter, ranks, host_link)
    moved = [
        (one.bytes * (ranks - 1) / ranks * (2 if one.operation == "all_reduce" else 1), one.seconds)
        for one in measured.collectives
    ]
    moved.sort()
    third = max(1, len(moved) // 5)
    bandwidth = median(size / seconds for size, seconds in moved[-third:])
    latency = median(max(seconds - size / bandwidth, 1e-6) for size, seconds in moved[:third])
    return Network(
        intra=bandwidth,
        inter=fallback.inter,
        gpus_per_node=ranks,
        host_link=host_link,
        intra_latency_s=latency / math.log2(ranks) if ranks > 2 else latency,
        inter_latency_s=fallback.inter_latency_s,
        half_bytes=1.0,
    )


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
