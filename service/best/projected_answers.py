"""Find the configuration that a study projected to a tuning target on which nothing was measured."""

from collections.abc import Sequence

from sqlalchemy.orm import Session

from shardtune.api_schemas.formatting import counted
from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.recommendations.best import Answer, BestConfig, Confidence, ConfidenceLevel
from shardtune.api_schemas.recommendations.tuning_targets import TuningTarget
from shardtune.api_schemas.studies.targets import StudyProjection
from shardtune.db.queries import best, studies
from shardtune.db.tables.best import RecommendationRow, TuningTargetRow
from shardtune.service.studies.results.target_config import contender_of
from shardtune.tuner.projection import gpu_kinds
from shardtune.tuner.projection.confirmation import with_confirmation_of


def find_projected(
    session: Session, project_id: str, cases: Sequence[TuningTarget]
) -> tuple[TuningTargetRow, StudyProjection] | None:
    """Find the newest recommendation whose study projected its result to exactly one of these tuning targets (model,
    workload, cluster). One that was measured on the target's kind of GPU comes before all that were measured on another
    kind. Returns the recommendation's row and the projection.
    """
    of_other_kind: tuple[TuningTargetRow, StudyProjection] | None = None
    for case in cases:
        rows = best.nearby_targets(session, project_id, case.model_key, case.model_type, case.cluster.device)
        for row in rows:
            if row.model_key != case.model_key or row.recommended is None:
                continue
            answer = row.recommended.answer
            projection = _projection_of(session, row.recommended)
            if projection is None or not _is_projected_to(answer, projection, case):
                continue
            if projection.measured_gpu is None:
                return row, projection
            of_other_kind = of_other_kind or (row, projection)
    return of_other_kind


def _projection_of(session: Session, recommended: RecommendationRow) -> StudyProjection | None:
    """Projection (prediction for a larger cluster) of a recommendation. It includes the results of later runs on that
    cluster, if any, that compared its first two choices.

    A recommendation from a repeated measurement has no projection of its own, because only the recommended
    configuration was measured. The projection is then read from the study that found this configuration.
    """
    renewed = recommended.answer.renewed
    if recommended.answer.result.projection is None and renewed is not None:
        earlier = best.recommendation(session, renewed.recommendation_id)
        recommended = recommended if earlier is None else earlier
    projection, study = recommended.answer.result.projection, studies.get(session, recommended.study_id)
    # A later projection of the study may wait for approval, but runs on the target hold for the same choices.
    if projection is None or study is None or study.result is None or study.result.projection is None:
        return projection
    return with_confirmation_of(projection, study.result.projection)


def _is_projected_to(answer: Answer, projection: StudyProjection, case: TuningTarget) -> bool:
    workload = answer.workload.model_copy(update={"global_batch": projection.global_batch})
    # The clusters may differ in what a short name leaves open, such as the host's memory.
    projected = TuningTarget(answer.model, workload, projection.cluster).canonical()
    if projected["workload"] != case.canonical()["workload"]:
        return False
    return _is_same_shape(projection.cluster, case.cluster) and _may_have_leaves_of(case.cluster, projection.cluster)


def _is_same_shape(first: Cluster, second: Cluster) -> bool:
    sizes = [(cluster.device, cluster.nodes, cluster.gpus_per_node) for cluster in (first, second)]
    is_kind = first.device == "cpu" or gpu_kinds.kind_of(first.gpu) == gpu_kinds.kind_of(second.gpu)
    return sizes[0] == sizes[1] and is_kind


def _may_have_leaves_of(requested: Cluster, projected: Cluster) -> bool:
    """Whether the leaf switches of a projection's cluster are those of the requested one. A request that states none, as
    the short name of a cluster does, leaves them open; the recommendation then names the projection's."""
    return requested.nodes_per_leaf is None or _limiting_leaves(requested) == _limiting_leaves(projected)


def _limiting_leaves(cluster: Cluster) -> tuple[int, float] | None:
    """Nodes below a leaf switch and its oversubscription; None if the uplinks limit nothing."""
    nodes, oversubscription = cluster.nodes_per_leaf, cluster.oversubscription or 1.0
    return None if nodes is None or nodes >= cluster.nodes or oversubscription <= 1.0 else (nodes, oversubscription)


def is_confident(best_config: BestConfig, lowest: ConfidenceLevel) -> bool:
    """Whether a recommendation that was projected to a larger cluster has at least the confidence `lowest`. Its
    confidence is never high.
    """
    return lowest is ConfidenceLevel.LOW or best_config.confidence.level is lowest


def as_projected(measured: BestConfig, projection: StudyProjection) -> BestConfig:
    """Convert a recommendation for the cluster that a study measured into one for the larger cluster, for which the
    study has projected (predicted) its result.
    """
    # Nothing was measured on another kind of GPU, where the order of the configurations may be another one, too.
    is_low = measured.confidence.level is ConfidenceLevel.LOW or projection.measured_gpu is not None
    level = ConfidenceLevel.LOW if is_low else ConfidenceLevel.MEDIUM
    reason = f"{_origin(projection)}, where nothing was measured"
    confirmation = projection.confirmation
    if confirmation is not None:
        # Its own recommendation is served instead where the question names the cluster in the same words.
        reason = (
            f"{_origin(projection)}, where study "
            f"{confirmation.study_id} compared the first two choices: {confirmation.outcome}"
        )
    # A single configuration is compared with nothing.
    elif projection.projected > 1:
        chance = f"{projection.best.chance_of_best:.0%}"
        reason = f"{reason}; the chance that it is the fastest of the measured ones there is {chance}"
    reasons = (
        reason,
        *_leaf_reasons(projection.cluster),
        *_rehearsal_reasons(projection),
        *measured.confidence.reasons,
    )
    workload = measured.workload.model_copy(update={"global_batch": projection.global_batch})
    return measured.model_copy(
        update={
            "match": "projected",
            "verdict": "projected",
            "confidence": Confidence(level=level, reasons=reasons),
            "description": projection.answer.description,
            "best": contender_of(projection),
            "speedup": None,
            "renewed": None,
            "projection": projection,
            "workload": workload,
            "cluster": projection.cluster,
        }
    )


def _origin(projection: StudyProjection) -> str:
    there = projection.cluster
    if projection.measured_gpu is None:
        return f"projected from {projection.measured_gpus} to {there.world_size} GPUs"
    here = f"{projection.measured_gpus} × {projection.measured_gpu}"
    return f"projected from {here} to {there.world_size} × {there.gpu}, another kind of GPU"


def _leaf_reasons(projected: Cluster) -> tuple[str, ...]:
    leaves = _limiting_leaves(projected)
    if leaves is None:
        return ()
    nodes, oversubscription = counted(leaves[0], "node"), leaves[1]
    return (f"projected for leaf switches of {nodes} each, {oversubscription:g}:1 oversubscribed, as stated",)


def _rehearsal_reasons(projection: StudyProjection) -> tuple[str, ...]:
    """Text about the rehearsal of a projected configuration, in which its first steps ran without timing. It is one
    of the reasons for the recommendation's confidence; empty if nothing was rehearsed.
    """
    if not projection.rehearsals:
        return ()
    rehearsal, ranks = projection.rehearsal_of_answer, projection.cluster.world_size
    if rehearsal is None or rehearsal.outcome != "built":
        return (f"no rehearsal has built it with {ranks:,} ranks",)
    return (f"a rehearsal built and stepped it with {ranks:,} ranks, without timing anything",)
