"""Rates and links from what a worker measured, in place of the catalogue's: any GPU, and CPU ranks."""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from shardtune.api_schemas.machines.hardware import Cluster, CollectiveTime, MeasuredHardware
from shardtune.tuner.prediction.rates import CPU_NETWORK, CPU_RATES, Curve, Network, Rates

_PASSES = {"all_gather": 1.0, "reduce_scatter": 1.0, "all_reduce": 2.0}
_SUSTAINED = 0.9
"""Of a single large product's rate, over the shapes of a training step."""
_ATTENTION = 0.55
"""Attention kernels over large products: 0.5-0.67 on the GPUs of the catalogue (tuner.prediction.rates)."""


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
        fresh_bytes=CPU_RATES.fresh_bytes if on_cpu else math.inf,
    )


def measured_network(measured: MeasuredHardware, cluster: Cluster, fallback: Network) -> Network:
    """Links within a node and between nodes by the sizes measured, each collective by itself."""
    by_group: dict[str, list[CollectiveTime]] = defaultdict(list)
    for one in measured.collectives:
        by_group["within" if one.nodes == 1 else "across" if one.ranks == one.nodes else "spanning"].append(one)
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
    """By operation; one that was not measured takes as many passes of a ring as it has more or fewer than a measured one.

    `ranks`: of a group that does not say how many it has.
    """
    points: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for one in times:
        group = one.ranks or ranks
        size = one.bytes * (group - 1) / group
        if size > 0:
            points[one.operation].append((size, one.seconds))
    curves = {operation: tuple(sorted(found)) for operation, found in points.items()}
    known = next(iter(points), None)
    for operation, passes in _PASSES.items():
        if operation not in curves and known is not None:
            scale = passes / _PASSES[known]
            curves[operation] = tuple((size, scale * seconds) for size, seconds in curves[known])
    return curves


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
