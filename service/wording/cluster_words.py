"""Descriptions of clusters in words."""

from shardtune.api_schemas.formatting import memory
from shardtune.api_schemas.machines.hardware import Cluster


def cluster(value: Cluster) -> str:
    """Describe a cluster: `4 × 8 NVIDIA H100 80GB HBM3`, `2 CPU ranks`."""
    nodes = f"{value.nodes} × " if value.nodes > 1 else ""
    return (
        f"{nodes}{value.gpus_per_node} CPU ranks"
        if value.device == "cpu"
        else f"{nodes}{value.gpus_per_node} × {value.gpu}"
    )


def cluster_with_memory(value: Cluster) -> str:
    """Describe a cluster in a list of several clusters; CPU ranks get their memory limit: `2 CPU ranks of 2.00 GiB`."""
    # A GPU's name implies its memory; a CPU rank's limit is whatever the worker was started with.
    return cluster(value) + (f" of {memory(value.memory_gib)}" if value.device == "cpu" else "")
