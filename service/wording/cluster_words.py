"""A cluster in words."""

from shardtune.api_schemas.formatting import memory
from shardtune.api_schemas.machines.hardware import Cluster


def cluster(value: Cluster) -> str:
    """`4 × 8 NVIDIA H100 80GB HBM3`, `2 CPU ranks`."""
    nodes = f"{value.nodes} × " if value.nodes > 1 else ""
    return (
        f"{nodes}{value.gpus_per_node} CPU ranks"
        if value.device == "cpu"
        else f"{nodes}{value.gpus_per_node} × {value.gpu}"
    )


def told_apart(value: Cluster) -> str:
    """The cluster where many are listed: a CPU rank has what its worker was given, `2 CPU ranks of 2.00 GiB`."""
    return cluster(value) + (f" of {memory(value.memory_gib)}" if value.device == "cpu" else "")
