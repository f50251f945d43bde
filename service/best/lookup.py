"""Find the recommended configuration for a tuning target (model, workload, cluster): one measured for exactly this
target, or the nearest with every difference listed.
"""

from collections.abc import Mapping, Sequence

from sqlalchemy.orm import Session

from shardtune.api_schemas.machines.fingerprints import Freshness
from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.recommendations.best import BestConfig, ConfidenceLevel, Difference
from shardtune.api_schemas.recommendations.tuning_targets import TuningTarget, differing_fields
from shardtune.api_schemas.training.models import ModelSpec
from shardtune.api_schemas.training.native_dtypes import decide
from shardtune.api_schemas.training.workload import PRECISIONS, WorkloadRequest
from shardtune.db.queries import best
from shardtune.db.queries.recommendations import proposals
from shardtune.db.tables.best import TuningTargetRow
from shardtune.service.best import local_clusters, pending_approval, projected_answers, target_distance
from shardtune.service.best.best_config import best_config_of, is_too_busy
from shardtune.service.best.busy_answers import reject_too_busy
from shardtune.service.http import etags
from shardtune.service.http.errors import NotFound
from shardtune.service.hub import named_models
from shardtune.service.process.context import Context
from shardtune.service.recommendations.decisions import target_tag as tag_of_case
from shardtune.service.recommendations.record import project_of, unknown_target
from shardtune.service.studies import create_and_read
from shardtune.service.studies.results.target_config import on_target
from shardtune.service.workers import registry, study_clusters
from shardtune.tuner import export


def find_by_key(
    context: Context, target_key: str, lowest: ConfidenceLevel, project_id: str | None = None
) -> BestConfig:
    """Return the recommendation that is stored under a target key. The key stands for a model, workload and cluster
    on one fingerprint (hardware and software versions).

    Raises:
        Conflict: the recommendation was measured on a machine that was too busy for an answer, and `lowest` (minimum
            confidence) is not low.
        NotFound: the key has no recommendation, or its recommendation waits for approval.
    """
    with context.db.read() as session:
        row = best.current_target(session, project_of(context, project_id), target_key)
        if row is None or row.recommended is None:
            raise pending_approval.awaits_approval(
                proposals.newest_proposal(session, row.project_id, row.target_key) if row else None
            ) or unknown_target(target_key)
        best_config = best_config_of(row, (), context.now(), target_key)
    return reject_too_busy(context, best_config, lowest)


def find_by_target(
    context: Context,
    cases: Sequence[TuningTarget],
    lowest: ConfidenceLevel,
    project_id: str | None = None,
    *,
    is_exact: bool = False,
    accepts_projections: bool = False,
) -> BestConfig:
    """Recommendation for the first of these tuning targets (model, workload, cluster) that has one, measured on any
    hardware and software versions, fresh before stale; else the recommendation nearest to the first target.

    `lowest`: minimum confidence of a nearest recommendation, and of one from a machine that was too busy. `is_exact`:
    return no nearest recommendation. `accepts_projections`: if nothing was measured for exactly these targets, return
    a recommendation that a study on fewer GPUs projected to one of them.

    Raises:
        Conflict: the only recommendation was measured on a machine that was too busy for an answer with this
            confidence.
        NotFound: no recommendation qualifies, or the only one waits for approval.
    """
    project_id = project_of(context, project_id)
    with context.db.read() as session:
        best_config = next(
            (exact for case in cases if (exact := find_in_session(context, session, project_id, case, None))), None
        )
        if best_config is None and accepts_projections:
            best_config = _find_projected(context, session, project_id, cases, lowest)
        if best_config is None and not is_exact:
            best_config = find_in_session(context, session, project_id, cases[0], lowest)
        proposed = None if best_config else pending_approval.newest_proposal(session, project_id, cases)
        is_unknown = best_config is None and proposed is None
        # Looked up only to tell the sender what a wider question would give.
        wider = find_in_session(context, session, project_id, cases[0], ConfidenceLevel.LOW) if is_unknown else None
    if best_config is not None:
        return reject_too_busy(context, best_config, lowest)
    raise pending_approval.awaits_approval(proposed) or _no_recommendation(
        cases[0], None if is_exact else lowest, wider
    )


def _find_projected(
    context: Context, session: Session, project_id: str, cases: Sequence[TuningTarget], lowest: ConfidenceLevel
) -> BestConfig | None:
    match = projected_answers.find_projected(session, project_id, cases)
    if match is None:
        return None
    row, projection = match
    best_config = projected_answers.as_projected(best_config_of(row, (), context.now()), projection)
    return best_config if projected_answers.is_confident(best_config, lowest) else None


def _no_recommendation(case: TuningTarget, lowest: ConfidenceLevel | None, wider_match: BestConfig | None) -> NotFound:
    """Error for a tuning target (model, workload, cluster) without a recommendation. `wider_match` is the
    recommendation that the request would get with fewer restrictions; the error mentions it.
    """
    remedy = "POST /v1/best:resolve starts a study"
    if wider_match is None:
        return NotFound("unknown_best", f"nothing is recommended for {case.model.name} here; {remedy}")
    field_names = ", ".join(item.field for item in wider_match.differences)
    wider_parameters = ["match=nearest"] if lowest is None else []
    if lowest is not None or wider_match.confidence.level is ConfidenceLevel.LOW:
        wider_parameters.append(f"lowest_confidence={wider_match.confidence.level.value}")
    return NotFound(
        "unknown_best",
        f"nothing is recommended for exactly this tuning target of {case.model.name}; study {wider_match.study_id} measured one with another {field_names}, "
        f"and {'&'.join(wider_parameters)} returns its recommendation; {remedy}",
    )


def targets_of(
    context: Context,
    model: ModelSpec,
    workload: WorkloadRequest,
    cluster: Cluster | None,
    project_id: str | None = None,
) -> list[TuningTarget]:
    """Tuning targets (model, workload, cluster) that a request can mean. There are several only if the precision or
    the cluster of the request is ambiguous.

    `cluster` None stands for `local`, the cluster of the live workers. A request without a precision gets the one
    that a new study on that cluster would get.

    Raises:
        Invalid: `local` could mean several clusters, or none.
    """
    project_id, model = project_of(context, project_id), named_models.with_config(context, model)
    if cluster is None:
        clusters = local_clusters.local_clusters(context, project_id)
        return [case for local in clusters for case in targets_of(context, model, workload, local, project_id)]
    if workload.precision is not None:
        return [TuningTarget(model, workload.with_precision(workload.precision), cluster)]
    with context.db.read() as session:
        live = registry.live_workers(context, session, project_id)
    device_dtypes = study_clusters.dtypes_of(cluster, live)
    precision, _ = decide(None, device_dtypes)
    is_known = any(device.emulates("bfloat16") is not None for device in device_dtypes)
    # Without workers the native dtypes may be unknown; a study there could have chosen any precision that a device
    # chooses.
    alternatives = () if is_known else (each for each in PRECISIONS.values() if not each.is_chosen_only_by_name)
    choices = (precision, *(other for other in alternatives if other != precision))
    return [TuningTarget(model, workload.with_precision(each), cluster) for each in choices]


def tag_of(best_config: BestConfig) -> str:
    """Entity tag of a recommendation; the tag does not depend on how old the recommendation is."""
    # The age changes with every request, and the key that was asked for is no part of the content.
    return etags.tag_of(best_config.model_copy(update={"age_s": 0.0, "asked_key": None}))


def check_unchanged(context: Context, row: TuningTargetRow, if_match: str | None) -> None:
    """Reject a decision about a tuning target (model, workload, cluster) if the header If-Match shows that its
    recommendation or history has changed since the client read it.

    Raises:
        PreconditionFailed: the recommendation or the history has changed.
    """
    served_tags = () if row.recommended is None else (tag_of(best_config_of(row, (), context.now())),)
    etags.check_tags(if_match, *served_tags, tag_of_case(row))


def export_files(context: Context, best_config: BestConfig) -> Mapping[str, str]:
    """Ready-to-use configuration files of a recommendation, such as a DeepSpeed JSON file."""
    with context.db.read() as session:
        row = create_and_read.get_study(context, session, best_config.study_id)
        study = create_and_read.study_views(session, [row])[0]
    if best_config.projection is not None:
        return export.files(*on_target(study, best_config.projection))
    return export.files(study, best_config.best)


def find_in_session(
    context: Context, session: Session, project_id: str, case: TuningTarget, lowest: ConfidenceLevel | None
) -> BestConfig | None:
    """Find the recommendation for a tuning target (model, workload, cluster) in the caller's transaction. If it has
    none, find the nearest recommendation, as `find_by_target` does.
    """
    exact_rows = best.targets_on_any_fingerprint(session, project_id, case.target_key_without_fingerprint)
    if exact_rows:
        row = min(exact_rows, key=lambda row: (is_too_busy(row), row.freshness != Freshness.FRESH))
        return best_config_of(row, (), context.now())
    if lowest is None:
        return None
    # Only targets of the same architecture and device are read: a nearer one cannot be of another.
    candidates = best.nearby_targets(session, project_id, case.model_key, case.model_type, case.cluster.device)
    targets_by_id = context.known_targets.fields_of(
        session, [row.recommended_id for row in candidates if row.recommended_id is not None]
    )
    requested_fields = case.flat()
    comparable = [
        (differing_fields(requested_fields, targets_by_id[row.recommended_id]), row)
        for row in candidates
        if row.recommended_id in targets_by_id
    ]
    comparable = [
        (names, row)
        for names, row in comparable
        if target_distance.may_stand_in(requested_fields, targets_by_id[row.recommended_id or ""], names, lowest)
        and (lowest is ConfidenceLevel.LOW or not (is_too_busy(row) or row.freshness != Freshness.FRESH))
    ]
    if not comparable:
        return None
    # Of the same target on several machines, the one on present hardware and software.
    names, row = min(
        comparable, key=lambda pair: (target_distance.distance(pair[0]), pair[1].freshness != Freshness.FRESH)
    )
    measured_fields = targets_by_id[row.recommended_id or ""]
    differences = (
        Difference(field=name, requested_value=requested_fields.get(name), known_value=measured_fields.get(name))
        for name in names
    )
    return best_config_of(row, tuple(differences), context.now())
