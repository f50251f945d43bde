"""Checks that a plan and a stored study are of the same training, and values that the plan takes from the study."""

import math

from shardtune.api_schemas.machines import networks
from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.recommendations.tuning_targets import TuningTarget
from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.training.models import ModelSpec
from shardtune.api_schemas.training.optimizers import DEFAULT_OPTIMIZER
from shardtune.api_schemas.training.workload import Precision
from shardtune.api_schemas.trials.plans import PlanRequest
from shardtune.tuner.prediction import catalogue


def check_training(study: Study, model: ModelSpec) -> None:
    """Check that a study trained a plan's model in the way of a plan: all of its weights, with AdamW.

    Raises:
        ValueError: it trained another model, a part of the weights, or with another optimizer.
    """
    workload, own, problem = study.spec.workload, study.spec.model, ""
    # Models without a name of their own have that of their architecture, such as llama.
    keys = {TuningTarget(each, workload, study.cluster).model_key for each in (own, model)}
    if len(keys) > 1:
        other = f"another {model.name}" if own.name == model.name else model.name
        problem = f"{own.name}, and the plan is of {other}, whose speed and checkpoint differ"
    elif workload.adapter is not None:
        problem = (
            f"{workload.adapter.describe()}, whose checkpoint leaves out frozen weights, and plans train all weights"
        )
    elif workload.optimizer.kind != DEFAULT_OPTIMIZER:
        problem = (
            f"with {workload.optimizer.kind}, whose states have another size in a checkpoint than {DEFAULT_OPTIMIZER}'s"
        )
    if problem:
        raise ValueError(
            f"study ({study.study_id}) trained {problem}; name a study of the plan's training, or leave study out"
        )


def why_not_comparable(study: Study) -> str:
    """Say why the speeds of a study are not those of a plan, although both train the same model; empty if they are."""
    workload = study.spec.workload
    if workload.data is not None:
        return f"its samples have several lengths ({workload.data.describe()}), and those of a plan have one"
    if workload.float8 is not None:
        return f"it trained in float8 ({workload.float8}), and a plan does not"
    return ""


def with_workload(request: PlanRequest, study: Study) -> PlanRequest:
    """Return the request with the study's sequence length and precision where it states none.

    Raises:
        ValueError: it states another sequence length or precision than the study's.
    """
    workload, stated = study.spec.workload, request.sequence_length
    if stated is not None and stated != workload.sequence_length:
        raise ValueError(
            f"sequence_length ({stated}) is not that of study {study.study_id}, which trained samples of "
            f"{workload.sequence_length} tokens; leave sequence_length out, or leave study out"
        )
    if request.precision is not None and _dtypes(request.precision) != _dtypes(workload.precision):
        raise ValueError(
            f"precision ({request.precision.name}) is not that of study {study.study_id}, which trained in "
            f"{workload.precision.name}; leave precision out, or leave study out"
        )
    taken = {"sequence_length": workload.sequence_length, "precision": workload.precision}
    return request.model_copy(update=taken)


def kind_in(request: PlanRequest, cluster: Cluster) -> str | None:
    """Return the name by which a request asks for a cluster's kind of GPU; None if it does not."""
    return next((name for name in request.gpus if _is_kind(name, cluster)), None)


def difference(request: PlanRequest, cluster: Cluster) -> str:
    """Say in which way a cluster is not one of a plan, apart from the kind and the number of GPUs; empty if it is one.
    A network that the request or the cluster leaves open is taken to be the same."""
    is_one_node = cluster.nodes == 1 and cluster.gpus_per_node <= request.gpus_per_node
    if not is_one_node and cluster.gpus_per_node != request.gpus_per_node:
        return f"its nodes have {cluster.gpus_per_node} GPUs, and gpus_per_node is {request.gpus_per_node}"
    if cluster.nodes == 1:
        return ""
    bandwidth = cluster.inter_node_gb_per_s
    if request.network is not None and bandwidth is not None:
        planned = networks.gb_per_s_of_node(request.network, request.gpus_per_node)
        if not math.isclose(planned, bandwidth, rel_tol=0.01):
            return f"its network has {bandwidth:g} GB/s a node, and network ({request.network}) has {planned:g}"
    if request.nodes_per_leaf is not None:
        planned_leaves = (request.nodes_per_leaf, request.oversubscription)
        if _limiting_leaves(*planned_leaves, cluster.nodes) != _limiting_leaves(
            cluster.nodes_per_leaf, cluster.oversubscription, cluster.nodes
        ):
            return "its leaf switches are not those of nodes_per_leaf and oversubscription"
    return ""


def _limiting_leaves(below: int | None, oversubscription: float | None, nodes: int) -> tuple[int, float] | None:
    """Nodes below a leaf switch and its oversubscription; None if the uplinks limit nothing."""
    is_open = below is None or below >= nodes or (oversubscription or 1.0) <= 1.0
    return None if is_open or below is None else (below, oversubscription or 1.0)


def _is_kind(name: str, cluster: Cluster) -> bool:
    # A slice of a GPU, or a card that only resembles one of the catalogue, has other speeds.
    kind = catalogue.product(cluster.gpu) if cluster.device == "cuda" else None
    return kind is not None and kind == catalogue.product(name)


def _dtypes(precision: Precision) -> dict[str, object]:
    return precision.model_dump(exclude={"name"})
