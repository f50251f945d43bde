"""Rungs: the cluster that a study has, on which trials do the work of one rank of the study's target."""

import math
from collections.abc import Iterator
from typing import Any

from pydantic import ValidationError

from shardtune.api_schemas.formatting import counted
from shardtune.api_schemas.machines.hardware import MOST_RANKS, Cluster, MeasuredHardware
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.studies.study_request import StudyRequest
from shardtune.api_schemas.studies.targets import Target
from shardtune.api_schemas.training.search_space import Limit
from shardtune.api_schemas.training.workload import Precision
from shardtune.tuner.prediction import catalogue, traced_shape
from shardtune.tuner.prediction.evaluation import machine
from shardtune.tuner.projection import gpu_kinds

_SHARING = ("tensor_parallel", "context_parallel", "pipeline_parallel")
"""Knobs with which several ranks share samples; with them the global batch may be smaller than the number of ranks."""


def for_rung(
    request: StudyRequest,
    cluster: Cluster,
    measured: MeasuredHardware | None = None,
    *,
    has_worker: bool = True,
    implied: Precision | None = None,
) -> StudyRequest:
    """Prepare a study's request for its trials: with all fields of its target filled in, and with the part of the
    target's global batch that gives each rank of the study's smaller cluster the same work. A request without a target
    stays as it is. `measured`: rates that the cluster's worker measured. `has_worker`: False postpones the checks that
    need these rates.

    Raises:
        ValueError: a target that cannot be projected to; names the field, its value and the remedy.
    """
    if request.target is None:
        return request
    target = _complete(request.target, cluster)
    _check_kind(request, target, cluster, implied)
    _check_size(target, cluster)
    _check_stated_network(target, cluster)
    _check_model(request, target)
    if has_worker and not gpu_kinds.is_other(target, cluster):
        _check_rates(target_cluster(cluster, target), measured)
        _check_network(target, cluster, measured)
    _check_tensor_ranks(request, target)
    batch = target.global_batch or request.workload.global_batch
    share = _share(request, batch, cluster, target)
    try:
        workload = type(request.workload).model_validate({**dict(request.workload), "global_batch": share})
    except ValidationError as error:
        problem = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise ValueError(
            f"target.global_batch ({batch}) leaves {counted(share, 'sample')} a step to the cluster's "
            f"{counted(cluster.world_size, 'rank')}: {problem}"
        ) from None
    return request.model_copy(
        update={"target": target.model_copy(update={"global_batch": batch}), "workload": workload}
    )


def target_cluster(cluster: Cluster, target: Target) -> Cluster:
    """Cluster of a study's target: the GPUs, hosts and network of the study's own cluster, with the target's numbers of
    nodes and GPUs. If the target names another kind of GPU, the catalogue describes them."""
    if gpu_kinds.is_other(target, cluster):
        return gpu_kinds.cluster_of(target, cluster)
    per_node = target.gpus_per_node or cluster.gpus_per_node
    return cluster.model_copy(
        update={
            "nodes": target.nodes,
            "gpus_per_node": per_node,
            "host_memory_gib": cluster.host_memory_gib * per_node / cluster.gpus_per_node,
            "inter_node_gb_per_s": target.inter_node_gb_per_s
            or cluster.inter_node_gb_per_s
            or _usual_network(cluster, per_node),
            **_leaf_switches(cluster, target),
        }
    )


def _leaf_switches(cluster: Cluster, target: Target) -> dict[str, float | None]:
    """Fields of the target's leaf switches: those that the target states, or else those of the study's cluster."""
    stated = cluster if target.nodes_per_leaf is None else target
    return {"nodes_per_leaf": stated.nodes_per_leaf, "oversubscription": stated.oversubscription}


def target_rates(measured: MeasuredHardware | None, cluster: Cluster, target: Target) -> MeasuredHardware | None:
    """Rates measured on the study's cluster, changed so that they hold on the larger target: each measured collective
    gets the number of ranks that took part in it, and collectives between nodes are dropped if the target states
    another network bandwidth."""
    if measured is None:
        return None
    collectives = (
        time.model_copy(update={"ranks": cluster.gpus_per_node if time.nodes == 1 else cluster.world_size})
        if time.ranks is None
        else time
        for time in measured.collectives
    )
    kept = tuple(time for time in collectives if time.nodes == 1 or target.inter_node_gb_per_s is None)
    return measured.model_copy(update={"collectives": kept})


def has_measured_network(measured: MeasuredHardware | None) -> bool:
    """Whether the worker measured collectives between nodes."""
    return measured is not None and any(time.nodes > 1 for time in measured.collectives)


def _complete(target: Target, cluster: Cluster) -> Target:
    per_node = target.gpus_per_node or cluster.gpus_per_node
    if target.nodes * per_node > MOST_RANKS:
        raise ValueError(
            f"target ({target.nodes} × {per_node} GPUs) must be at most {MOST_RANKS} GPUs; name fewer nodes"
        )
    return target.model_copy(update={"gpus_per_node": per_node})


def _check_kind(request: StudyRequest, target: Target, cluster: Cluster, implied: Precision | None) -> None:
    if gpu_kinds.is_other(target, cluster):
        gpu_kinds.check(request, target, cluster, implied)


def _check_size(target: Target, cluster: Cluster) -> None:
    per_node = target.gpus_per_node or cluster.gpus_per_node
    shown = f"target ({target.nodes} × {per_node} GPUs)"
    here = f"the cluster's {cluster.nodes} × {cluster.gpus_per_node}"
    is_other = gpu_kinds.is_other(target, cluster)
    if (target.nodes, per_node) == (cluster.nodes, cluster.gpus_per_node) and not is_other:
        raise ValueError(f"{shown} is what the cluster has; leave target out, or name more nodes")
    if target.nodes < cluster.nodes or per_node < cluster.gpus_per_node:
        raise ValueError(
            f"{shown} must have at least as many nodes and GPUs of a node as {here}; name more, or tune on a smaller cluster"
        )


def _check_stated_network(target: Target, cluster: Cluster) -> None:
    stated, field = target.inter_node_gb_per_s, "target.inter_node_gb_per_s"
    if stated is not None and cluster.device == "cpu":
        raise ValueError(f"{field} ({stated:g}) is of no use for CPU ranks, whose network is gloo's; leave it out")
    if stated is not None and target.nodes == 1:
        raise ValueError(f"{field} ({stated:g}) needs more than one node; leave it out")
    if target.nodes_per_leaf is not None and target.nodes == 1:
        raise ValueError(f"target.nodes_per_leaf ({target.nodes_per_leaf}) needs more than one node; leave it out")


def _check_network(target: Target, cluster: Cluster, measured: MeasuredHardware | None) -> None:
    if target.nodes == 1 or cluster.device == "cpu" or has_measured_network(measured):
        return
    per_node = target.gpus_per_node or cluster.gpus_per_node
    bandwidth = target.inter_node_gb_per_s or cluster.inter_node_gb_per_s or _usual_network(cluster, per_node)
    if bandwidth is None:
        raise ValueError(
            f"target.inter_node_gb_per_s (null) is needed for {target.nodes} nodes: the cluster has one, and the catalogue lacks {cluster.gpu}; "
            "enter the network's GB/s per node and direction"
        )


def _usual_network(cluster: Cluster, gpus_per_node: int) -> float | None:
    """Network bandwidth of a node in GB/s, as the catalogue states it for the node's GPUs; None for CPU ranks and
    unknown GPUs."""
    if cluster.device == "cpu":
        return None
    try:
        return catalogue.find(cluster.gpu).network_bytes_per_s * gpus_per_node / 1e9
    except ValueError:
        return None


def _check_model(request: StudyRequest, target: Target) -> None:
    reason = None if request.model.is_own else traced_shape.why_unpredictable(request.model.trained_config)
    if reason is not None:
        raise ValueError(f"target ({target.short_form}) needs a prediction of the model: {reason}; leave target out")


def _check_rates(there: Cluster, measured: MeasuredHardware | None) -> None:
    """Reject a target for which speed cannot be predicted: a projection multiplies a measurement by the ratio of two
    predictions."""
    try:
        rates = machine(there, measured=measured).rates
    except ValueError:
        rates = None
    if rates is None:
        raise ValueError(
            f"target ({there.nodes} × {there.gpus_per_node} GPUs) needs the rates of {there.gpu}, which the catalogue "
            "lacks; run `shardtune measure-hardware` on the worker, or leave target out"
        )


def _check_tensor_ranks(request: StudyRequest, target: Target) -> None:
    per_node = target.gpus_per_node or 1
    for field, value in _stated_tensor_ranks(request):
        if value > per_node:
            raise ValueError(
                f"{field} ({value}) is more than the {per_node} GPUs of a target's node; use at most {per_node}, or a target "
                "with larger nodes"
            )


def _stated_tensor_ranks(request: StudyRequest) -> Iterator[tuple[str, int]]:
    limit: Any = request.space.knobs.get("tensor_parallel")
    values = limit if isinstance(limit, tuple) else (limit.min,) if isinstance(limit, Limit) else (limit,)
    yield from (("space.knobs.tensor_parallel", value) for value in values if type(value) is int)
    if (baseline := _own_baseline(request)) is not None:
        yield "baseline.strategy.tensor_parallel", int(getattr(baseline.strategy, "tensor_parallel", 1))


def _own_baseline(request: StudyRequest) -> TrialConfig | None:
    """Baseline of the request in Shardtune's own format; None where it is invalid (another check rejects it) or in
    another tool's format."""
    values = request.baseline
    if not isinstance(values, dict):
        return values
    if "strategy" not in values and "kind" not in values:
        return None
    try:
        return TrialConfig.model_validate(values if "strategy" in values else {"strategy": values})
    except ValidationError:
        return None


def _share(request: StudyRequest, batch: int, cluster: Cluster, target: Target) -> int:
    """Samples per step on the study's cluster that give each rank the same work as on the target."""
    ranks, there = cluster.world_size, target.nodes * (target.gpus_per_node or 1)
    baseline = _own_baseline(request)
    shares = any(name in request.space.knobs for name in _SHARING) or (baseline is not None and baseline.sharing > 1)
    # Ranks that share samples need fewer of them; the search rejects what does not divide there.
    step = there // math.gcd(there, ranks) if shares else there
    if batch % step:
        lower, upper = batch // step * step, (batch // step + 1) * step
        choices = f"{lower} or {upper}" if lower else f"{upper}"
        field = "workload" if request.target is None or request.target.global_batch is None else "target"
        raise ValueError(
            f"{field}.global_batch ({batch}) must be a multiple of {step}, so that each of the target's {there} ranks and of "
            f"the cluster's {ranks} has the same work; try {choices}"
        )
    return batch * ranks // there
