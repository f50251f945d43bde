"""View of a study as if it ran on its target, for exports and answers about the target."""

import json

from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.studies.study_result import Contender
from shardtune.api_schemas.studies.targets import StudyProjection
from shardtune.service.http.errors import Conflict
from shardtune.service.studies.results import target_confirmation

SIZES_FILE = "sizes.json"
"""Name of the exported file that lists the fastest configuration for each number of GPUs."""


def study_on_target(study: Study) -> tuple[Study, Contender]:
    """Return a copy of a study that names its target (a larger cluster) as its cluster, with the target's global
    batch. With it comes the configuration that is projected to be the fastest there.

    Raises:
        Conflict: the study has no projection.
    """
    projection = None if study.result is None else study.result.projection
    if projection is None:
        raise Conflict(
            "study_unfinished",
            f"study {study.study_id} {_why_not_projected(study)}; choose best, baseline or a trial's number",
        )
    return on_target(study, projection)


def _why_not_projected(study: Study) -> str:
    if study.spec.target is None:
        return "names no target"
    if study.result is None:
        reason = f": {study.reason}" if study.reason else ""
        return f"is {study.state.value}{reason}, and nothing is projected before its verdict"
    return f"has a result without a projection: {'; '.join(study.result.notes) or 'it has no notes'}"


def on_target(study: Study, projection: StudyProjection) -> tuple[Study, Contender]:
    """Return a copy of a study with the cluster and the global batch of its projection (prediction for a larger
    cluster), and the configuration that is recommended for that cluster.
    """
    workload = study.spec.workload.model_copy(update={"global_batch": projection.global_batch})
    spec = study.spec.model_copy(update={"workload": workload, "cluster": projection.cluster})
    return study.model_copy(update={"cluster": projection.cluster, "spec": spec}), contender_of(projection)


def target_files(study: Study) -> dict[str, str]:
    """Return additional files for the export of a configuration that was projected to a larger cluster. One lists the
    fastest configuration for each number of nodes, for launchers that may get fewer nodes. The others belong to a job
    that tests the projection on that cluster.
    """
    projection = None if study.result is None else study.result.projection
    if projection is None:
        return {}
    # Where the target's nodes are larger, a launcher that looks for a number of them must not find the study's nodes.
    per_node = projection.cluster.gpus_per_node
    rows = [row.model_dump(mode="json") for row in projection.sizes if row.gpus == row.nodes * per_node]
    return {SIZES_FILE: json.dumps(rows, indent=2) + "\n", **target_confirmation.files(study, projection)}


def contender_of(projection: StudyProjection) -> Contender:
    """Return the configuration recommended for the study's target (a larger cluster) in the form of a measured one.
    If a study on the target has measured it, its speed and number of runs come from that study; else the speed is
    projected, and the number of runs is 0.
    """
    answer, confirmation = projection.answer, projection.confirmation
    ran = next((row for row in confirmation.measured if row.config == answer.config), None) if confirmation else None
    return Contender(
        trial_number=answer.trial_number,
        config=answer.config,
        description=answer.description,
        tokens_per_s_per_gpu=answer.tokens_per_s_per_gpu.expected if ran is None else ran.tokens_per_s_per_gpu,
        peak_allocated_gib=answer.memory_gib.expected,
        peak_reserved_gib=None,
        runs=0 if ran is None else ran.runs,
    )
