"""Address of a plan that uses a study: the form of the page `/plans`, filled in with what the study measured."""

from collections.abc import Sequence
from urllib.parse import urlencode

from shardtune.api_schemas.machines.hardware import MOST_RANKS, Cluster
from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.training import model_presets
from shardtune.api_schemas.training.models import ModelSpec
from shardtune.api_schemas.trials.plans import MOST_GPUS_PER_NODE
from shardtune.tuner.plans import study_training
from shardtune.tuner.prediction import catalogue

_GROWTH = (1, 2, 4, 8)
"""Numbers of GPUs of the plan, as multiples of those that the study measured."""


def plan_address(study: Study) -> str:
    """Return the address of the plan. It is empty if the study has no answer, measured no GPUs of the catalogue, or
    trained what no plan or no address can state."""
    result = study.result
    # First: the page of a running study is made anew for each event.
    if result is None:
        return ""
    model = _model(study.spec.model)
    if model is None or not _is_planned(study):
        return ""
    planned = [study.cluster, *([] if result.projection is None else [result.projection.cluster])]
    clusters = [cluster for cluster in planned if cluster.gpus_per_node <= MOST_GPUS_PER_NODE]
    kinds = dict.fromkeys(kind for cluster in clusters if (kind := _kind(cluster)) is not None)
    if _kind(study.cluster) is None or study.cluster not in clusters:
        return ""
    fields = model | {
        "study": study.study_id,
        "gpus": ", ".join(kinds),
        "counts": ", ".join(map(str, _counts(clusters))),
        "gpus_per_node": str(clusters[-1].gpus_per_node),
    }
    return "/plans?" + urlencode(fields)


def _counts(clusters: Sequence[Cluster]) -> list[int]:
    """Numbers of GPUs of the plan: those of the clusters, and multiples of the first. They fill the nodes of the last
    cluster, or are a part of one."""
    here, per_node = clusters[0].world_size, clusters[-1].gpus_per_node
    sizes = {factor * here for factor in _GROWTH} | {cluster.world_size for cluster in clusters}
    return sorted(size for size in sizes if size <= MOST_RANKS and (size <= per_node or size % per_node == 0))


def _is_planned(study: Study) -> bool:
    """Whether plans train as the study did."""
    try:
        study_training.check_training(study, study.spec.model)
    except ValueError:
        return False
    return not study_training.why_not_comparable(study)


def _model(spec: ModelSpec) -> dict[str, str] | None:
    """Fields of the form that name a model; None for one that has to be pasted."""
    if spec.hub is not None:
        return {"model": "hub", "hub": f"{spec.hub.id}@{spec.hub.revision}"}
    is_preset = spec.name in model_presets.preset_names() and spec == ModelSpec.model_validate(spec.name)
    return {"model": spec.name} if is_preset else None


def _kind(cluster: Cluster) -> str | None:
    """Shortest name of a cluster's GPUs in the catalogue; None if it has none of the catalogue."""
    kind = catalogue.product(cluster.gpu) if cluster.device == "cuda" else None
    return None if kind is None else min((kind.name, *kind.aliases), key=len)
