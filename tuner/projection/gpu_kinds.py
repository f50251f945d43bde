"""Targets with another kind of GPU than the study's cluster: what the catalogue says of them, and what rules them out.

Measured speeds are projected by the ratio of two predictions. Between kinds of GPU both come from the catalogue's rates,
as an error of the model's prediction then cancels; rates that a worker measured exist for one of the two alone.
"""

from functools import lru_cache

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.studies.study_request import StudyRequest
from shardtune.api_schemas.studies.targets import Target
from shardtune.api_schemas.training.native_dtypes import decide
from shardtune.api_schemas.training.workload import Precision
from shardtune.tuner.prediction import catalogue
from shardtune.tuner.prediction.evaluation import machine


def is_other(target: Target, cluster: Cluster) -> bool:
    """Whether a target names another kind of GPU than that of the study's cluster."""
    return target.gpu is not None and kind_of(target.gpu) != kind_of(cluster.gpu)


# Every prediction of a size asks, and a name that the catalogue lacks is first compared with all of its names.
@lru_cache(maxsize=256)
def kind_of(name: str) -> str:
    """Name of a GPU in the catalogue. A GPU that is not in it has its own name, without case and signs; so has one that
    only resembles a GPU of the catalogue, such as a slice of it."""
    gpu = catalogue.product(name)
    return catalogue.folded(name) if gpu is None else gpu.name


def cluster_of(target: Target, cluster: Cluster) -> Cluster:
    """Cluster of a target, as the catalogue describes its kind of GPU, with what the target itself states about its
    network. Its hosts have as much memory for each GPU as those of `cluster`, the study's own.

    Raises:
        ValueError: the catalogue lacks this kind of GPU, or its name means several kinds.
    """
    assert target.gpu is not None
    gpu = catalogue.find(target.gpu, "target.gpu")
    per_node = target.gpus_per_node or cluster.gpus_per_node
    assert gpu.memory_gib is not None
    return Cluster(
        gpu=gpu.name,
        nodes=target.nodes,
        gpus_per_node=per_node,
        memory_gib=gpu.memory_gib,
        host_memory_gib=cluster.host_memory_gib * per_node / cluster.gpus_per_node,
        inter_node_gb_per_s=target.inter_node_gb_per_s or gpu.network_bytes_per_s * per_node / 1e9,
        nodes_per_leaf=target.nodes_per_leaf,
        oversubscription=target.oversubscription,
    )


def check(request: StudyRequest, target: Target, cluster: Cluster, implied: Precision | None = None) -> None:
    """Reject a target with another kind of GPU to which nothing can be projected. `implied`: precision of a request that
    states none, by its baseline.

    Raises:
        ValueError: names the field, its value and the remedy.
    """
    if cluster.device == "cpu":
        raise ValueError(
            f"target.gpu ({target.gpu!r}) is not the cluster's kind ({cluster.gpu}): CPU ranks say nothing about GPUs; leave "
            "it out, or run the study on GPUs"
        )
    differs = f"target.gpu ({target.gpu!r}) is not the cluster's kind ({cluster.gpu})"
    if not _has_rates(cluster):
        raise ValueError(
            f"{differs}, which has no rates in the catalogue of GPUs; leave it out, or run the study on the target's kind"
        )
    there = cluster_of(target, cluster)
    if catalogue.product(str(target.gpu)) is None:
        raise ValueError(
            f"{differs}, and {there.gpu} is the nearest product in the catalogue of GPUs, not this one; name another kind, or "
            "run the study on this one"
        )
    if not _has_rates(there):
        raise ValueError(
            f"{differs}, and has no rates in the catalogue of GPUs; name another kind, or run the study on this one"
        )
    _check_dtypes(request, implied, cluster, there)


def _has_rates(cluster: Cluster) -> bool:
    if catalogue.product(cluster.gpu) is None:
        return False
    try:
        return machine(cluster).rates is not None
    except ValueError:
        return False


def _check_dtypes(request: StudyRequest, implied: Precision | None, cluster: Cluster, there: Cluster) -> None:
    dtypes, workload = catalogue.dtypes_of(there), request.workload
    if workload.float8 is not None and not dtypes.has_float8:
        raise ValueError(
            f"target.gpu ({there.gpu}) cannot train in float8 (workload.float8 {workload.float8!r}); leave float8 out, or "
            "name another kind"
        )
    # `auto` becomes the precision of the study's own devices, such as fp32 on those without bfloat16.
    stated = workload.precision or implied
    precision, _ = decide(stated, [catalogue.dtypes_of(cluster)])
    named = precision.name if stated is not None else f"auto, which is {precision.name} here"
    if dtypes.emulates(precision.compute_dtype):
        raise ValueError(
            f"target.gpu ({there.gpu}) only emulates {precision.compute_dtype} (workload.precision {named}), so the "
            "study's speeds say nothing about it; state a precision that both kinds of GPU have, such as fp16-mixed"
        )
