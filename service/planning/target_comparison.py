"""Study that compares the first two choices of a projection on the target itself."""

from typing import Any

from pydantic import JsonValue

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.studies.budget import Budget
from shardtune.api_schemas.studies.study_request import StudyRequest, StudySpec
from shardtune.api_schemas.studies.targets import StudyProjection
from shardtune.api_schemas.training.search_space import SpaceLimits
from shardtune.tuner.prediction import catalogue
from shardtune.tuner.projection import gpu_kinds
from shardtune.tuner.search.space.flat import flatten

_IMPLIED = ("backend", "dp_replicate")
"""Knobs that the comparison of a projection's two choices does not limit, because its other limits already determine
them.
"""

LEFT_OUT = frozenset(
    {
        *("target", "consider", "consider_steps", "most_loss_difference"),
        *("sampler", "seed", "wait_for_worker_s", "wait_for_quiet_s"),
    }
)
"""Fields of a study's request that are reset to their defaults in the study that compares its projection's choices on
the target. That study searches nothing and compares no recipes, and it waits only if its own file says so."""


def comparing_study(study_id: str, spec: StudySpec, projection: StudyProjection) -> StudyRequest:
    """Return the request for a study on the target cluster that compares the first and the second choice of a
    projection (prediction for that cluster) in pairs of runs.

    The second choice is the baseline, and all knobs are limited to the values of the first choice. All other fields
    are copied from the study that made the projection, except those in `LEFT_OUT`, which get their defaults.
    """
    knobs = {name: value for name, value in flatten(projection.best.config).items() if name not in _IMPLIED}
    kept = {name: getattr(spec, name) for name in StudyRequest.model_fields if name not in LEFT_OUT}
    changes: dict[str, Any] = {
        "workload": spec.workload.model_copy(update={"global_batch": projection.global_batch}),
        "cluster": _cluster_of(projection),
        "budget": Budget(
            max_trials=2,
            max_pairs=spec.budget.max_pairs,
            repeat_disturbed=spec.budget.repeat_disturbed,
            short_steps=spec.budget.short_steps,
            resume_check=False,
            sustained_run_s=0,
        ),
        "baseline": projection.runners_up[0].config,
        "space": SpaceLimits(backends=(projection.best.config.strategy.kind,), knobs=knobs),
        "confirms": study_id,
    }
    return StudyRequest(**kept | changes)


def _cluster_of(projection: StudyProjection) -> Cluster | str:
    """Cluster of the target, as a request states it. Of another kind of GPU than the study's, nobody knows the memory of
    the hosts: its short name leaves it open, and any worker with these GPUs may run the comparison."""
    there = projection.cluster
    if projection.measured_gpu is None:
        return there
    return f"{there.nodes}x{there.gpus_per_node}x{there.gpu}"


def difference(spec: StudySpec, cluster: Cluster, expected: StudyRequest) -> str | None:
    """Name the first field in which a study differs from the study that would compare a projection's two choices on
    the target cluster; None if there is no such field.

    Budget and objective may differ: they change how long the study takes, but not what it compares.
    """
    there = catalogue.parse_cluster(expected.cluster) if isinstance(expected.cluster, str) else expected.cluster
    fields = (
        ("model", spec.model == expected.model),
        ("workload", spec.workload == expected.workload),
        ("cluster", _shape(cluster) == _shape(there)),
        ("baseline", _values(spec.baseline) == _values(expected.baseline)),
        ("space", spec.space.model_dump(mode="json") == expected.space.model_dump(mode="json")),
    )
    return next((name for name, is_same in fields if not is_same), None)


def _shape(cluster: Cluster) -> object:
    return cluster.device, gpu_kinds.kind_of(cluster.gpu), cluster.nodes, cluster.gpus_per_node


def _values(baseline: TrialConfig | dict[str, JsonValue] | None) -> object:
    return baseline.model_dump(mode="json") if isinstance(baseline, TrialConfig) else baseline
