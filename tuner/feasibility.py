"""The first memory gate: reject a configuration only if a true lower bound of what one rank holds exceeds its memory."""

from api_schemas.base import GIB
from api_schemas.hardware import Cluster
from api_schemas.models import ModelProfile
from api_schemas.strategies import TrialConfig
from api_schemas.studies import Objective
from api_schemas.trials import Rejection
from api_schemas.workload import Workload
from tuner.memory import gib, lower_bound
from tuner.objective import available_gib


def gate(
    config: TrialConfig, profile: ModelProfile, workload: Workload, cluster: Cluster, objective: Objective
) -> Rejection | None:
    """Why the configuration cannot fit, None where it might."""
    need = lower_bound(config, profile, workload, cluster)
    free = available_gib(cluster, objective)
    if need.device_bytes > free * GIB:
        where = "GPU" if cluster.device == "cuda" else "CPU rank"
        limit = f"{gib(free * GIB)} GiB ({cluster.memory_gib:g} GiB less {objective.memory_headroom:.0%} headroom)"
        return _rejection(
            config, need.device_bytes, free, f"each {where} would hold at least {need.text()}; it has {limit}"
        )
    on_node = need.host_bytes * cluster.gpus_per_node
    if on_node > cluster.host_memory_gib * GIB:
        return _rejection(
            config,
            on_node,
            cluster.host_memory_gib,
            f"offloading needs at least {gib(on_node)} GiB of host memory on each node "
            f"({cluster.gpus_per_node} ranks × {gib(need.host_bytes)} GiB); it has {cluster.host_memory_gib:g} GiB",
        )
    return None


def _rejection(config: TrialConfig, needed_bytes: float, free: float, reason: str) -> Rejection:
    return Rejection(
        config=config, needed_gib=needed_bytes / GIB, available_gib=free, reason=f"{config.describe()}: {reason}"
    )
