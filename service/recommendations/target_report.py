"""Report the result of a study on the target to the study whose projection it confirms or changes."""

import logging
from datetime import datetime
from typing import Any

from sqlalchemy.orm import Session

from shardtune.api_schemas.notifications.events import EventType
from shardtune.api_schemas.recommendations.tuning_targets import TuningTarget
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.studies.study_result import StudyResult
from shardtune.api_schemas.studies.targets import StudyProjection
from shardtune.api_schemas.trials.failures import FailureKind
from shardtune.db import outbox
from shardtune.db.queries import studies, trials
from shardtune.db.tables.studies import StudyRow
from shardtune.service.planning.target_comparison import comparing_study, difference
from shardtune.tuner.projection.confirmation import confirmed, replaces, with_confirmation_of

log = logging.getLogger(__name__)

_CANNOT_RUN = (FailureKind.OOM, FailureKind.OVER_LIMIT, FailureKind.ILLEGAL)
"""Kinds of failures that prove that a configuration cannot run on the target (a larger cluster). Failures of other
kinds may not happen again.
"""


def report_confirmation(session: Session, study: StudyRow, result: StudyResult, now: datetime) -> None:
    """Store what a study measured on a target cluster in the other study whose projection (prediction for that
    cluster) it tests. Call it once the study's result needs no approval.

    Studies that measure or check a recommendation again report nothing: they have a copy of a study's request, but
    run other configurations.
    """
    original = _named_study(session, study)
    if original is None:
        return
    projection = None if original.result is None else original.result.projection
    if original.result is None or projection is None or not projection.runners_up:
        log.warning("the study to confirm has no projection", extra={"study": study.id, "confirms": original.id})
        return
    # The study may have been extended since, and its projection may have other choices now.
    changed = difference(study.spec, study.cluster, comparing_study(original.id, original.spec, projection))
    if changed is not None:
        log.warning(
            "the projection to confirm has changed: %s", changed, extra={"study": study.id, "confirms": original.id}
        )
        return
    reported = confirmed(projection, study.id, result, _cannot_run(session, study), now)
    if not replaces(reported, projection):
        log.info("an earlier study decided, and stays", extra={"study": study.id, "confirms": original.id})
        return
    _replace_projection(session, original, reported, study, now)
    log.info("projection %s on the target", reported.verdict, extra={"study": original.id, "confirmed_by": study.id})


def take_back_confirmation(session: Session, study: StudyRow, now: datetime) -> None:
    """Undo what a study has changed in the projection that it tested. The projection belongs to another study."""
    original = _named_study(session, study)
    projection = None if original is None or original.result is None else original.result.projection
    if original is None or original.result is None or projection is None or projection.confirmation is None:
        return
    if projection.confirmation.study_id == study.id:
        plain = projection.model_copy(update={"verdict": "projected", "confirmation": None})
        _replace_projection(session, original, plain, study, now)
        log.info("confirmation taken back", extra={"study": original.id, "confirmed_by": study.id})


def keep_confirmation(earlier: StudyResult | None, result: StudyResult) -> StudyResult:
    """Return the new result of an extended study. Its projection (prediction for a larger cluster) keeps what was
    measured on that cluster, if its first two choices are the same as before.
    """
    if earlier is None or earlier.projection is None or result.projection is None:
        return result
    return result.model_copy(update={"projection": with_confirmation_of(result.projection, earlier.projection)})


def _replace_projection(
    session: Session, original: StudyRow, projection: StudyProjection, there: StudyRow, now: datetime
) -> None:
    """Store a projection that contains the results of `there`, a study on the target cluster. Webhooks are notified
    if the recommended configuration or the verdict has changed.
    """
    assert original.result is not None and original.result.projection is not None
    before = original.result.projection
    original.result = original.result.model_copy(update={"projection": projection})
    original.version += 1
    if (before.verdict, before.answer.config) == (projection.verdict, projection.answer.config):
        return
    # The study has ended, and its stream of events with it: only webhooks hear of it, as of other changed answers.
    outbox.notify(
        session,
        project_id=original.project_id,
        study_id=original.id,
        kind=EventType.BEST_TARGET_CHANGED,
        data=_event_data(original, projection, there),
        now=now,
    )


def _event_data(original: StudyRow, projection: StudyProjection, there: StudyRow) -> dict[str, Any]:
    answer, confirmation = projection.answer, projection.confirmation
    case = TuningTarget(original.spec.model, original.spec.workload, original.cluster)
    measured = () if confirmation is None else confirmation.measured
    on_target = next((row.tokens_per_s_per_gpu for row in measured if row.config == answer.config), None)
    return {
        "project_id": original.project_id,
        "target_key": None if original.fingerprint is None else case.target_key(original.fingerprint.value),
        "nodes": projection.cluster.nodes,
        "gpus_per_node": projection.cluster.gpus_per_node,
        "description": answer.description,
        "tokens_per_s_per_gpu": answer.tokens_per_s_per_gpu.expected if on_target is None else on_target,
        "verdict": projection.verdict,
        "confirming_study_id": there.id,
    }


def _named_study(session: Session, study: StudyRow) -> StudyRow | None:
    """Lock and return the other study whose projection (prediction for a larger cluster) a user's study tests. The
    field `confirms` names it; None if it names none.
    """
    named = study.spec.confirms
    if named is None or study.system_study is not None:
        return None
    existing = studies.get(session, named)
    if existing is None or existing.project_id != study.project_id or existing.deleted_at is not None:
        return None
    # Nobody checked what it compares with a study that did not exist yet; two could also name, and lock, each other.
    if existing.id == study.id or existing.created_at > study.created_at:
        return None
    return studies.lock(session, named)


def _cannot_run(session: Session, study: StudyRow) -> tuple[TrialConfig, ...]:
    """Return the configurations that failed in runs on the target (a larger cluster), because they need too much
    memory there or their backend rejects them.
    """
    rows = trials.of_study(session, study.id)
    return tuple(row.config for row in rows if row.failure is not None and row.failure.kind in _CANNOT_RUN)
