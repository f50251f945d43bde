"""Apply the outcome of a retune: renew the incumbent (current recommendation), and recommend or propose a faster
configuration.

The key of a tuning target contains the fingerprint (hardware and software versions), so a recommendation gets a new key
when the fingerprint changes. The row of the old key keeps its state and refers to the new key: requests by the old key
get the present recommendation, with a note that the key was superseded.
"""

from datetime import datetime

from sqlalchemy.orm import Session

from shardtune.api_schemas.notifications.events import EventType
from shardtune.api_schemas.recommendations.best import DecisionAction, EarlierVerdict, RecommendationState
from shardtune.api_schemas.studies.study_result import StudyResult, Verdict
from shardtune.db.tables.best import RecommendationRow, TuningTargetRow
from shardtune.db.tables.studies import StudyRow
from shardtune.service.process.context import Context
from shardtune.service.recommendations.record import (
    SERVICE,
    add_proposal,
    kept_reason,
    lock_target,
    make_current,
    needs_approval,
    notify,
    recommended_speed,
    record_decision,
)

RECOMMENDED, PROPOSED, KEPT_BACK = (
    "is recommended",
    "waits for approval",
    "is not recommended: the present recommendation there is faster",
)


def renew_incumbent(
    session: Session, old: TuningTargetRow, study: StudyRow, reason: str, now: datetime
) -> RecommendationRow:
    """Renew the incumbent (current recommendation) of a tuning target with the study's new measurement of it. The
    caller has locked the study and the target's row.
    """
    assert study.result is not None
    renewed = _renew(session, old, study, study.result, reason, now)
    notify(session, EventType.BEST_RENEWED, renewed, now, reason=reason)
    return renewed


def replace_incumbent(context: Context, session: Session, old: TuningTargetRow, study: StudyRow, reason: str) -> str:
    """Recommend a configuration that was measured to be faster than the incumbent (current recommendation), or
    propose it for approval. If there is already a recommendation on the new fingerprint (hardware and software
    versions) that is at least as fast, that one stays. Returns a text that says which of these happened.

    The caller has locked the study and the target's row.
    """
    assert study.result is not None and old.recommended is not None
    now = context.now()
    # The incumbent is renewed under the new key first, so that its replacement can be rolled back there.
    if _has_as_baseline(study.result, old.recommended):
        baseline = study.result.baseline
        incumbent_result = StudyResult(
            best=baseline, baseline=baseline, speedup=None, verdict=Verdict.UNDECIDED, notes=(reason,)
        )
        _renew(session, old, study, incumbent_result, "measured beside what replaces it", now)
    row = lock_target(session, study, now)
    replacement = add_proposal(session, row, study, study.result, now)
    if needs_approval(context, study) or row.is_pinned or old.is_pinned:
        notify(session, EventType.BEST_PROPOSED, replacement, now, reason=reason)
        return PROPOSED
    recommended = row.recommended
    # The new fingerprint may have a recommendation of its own, from a study that ran there; the faster one stays.
    has_other = (
        row.target_key != old.target_key and recommended is not None and not _has_as_baseline(study.result, recommended)
    )
    if has_other and recommended is not None and recommended_speed(recommended) >= recommended_speed(replacement):
        replacement.state = RecommendationState.RETIRED
        reason = kept_reason(replacement, recommended)
        record_decision(session, row, replacement, DecisionAction.KEPT, SERVICE, reason, now)
        _supersede(session, old, row, now)
        return KEPT_BACK
    make_current(session, row, replacement, now)
    record_decision(session, row, replacement, DecisionAction.RECOMMENDED, SERVICE, reason, now)
    _supersede(session, old, row, now)
    notify(session, EventType.BEST_REPLACED, replacement, now, reason=reason)
    return RECOMMENDED


def record_inconclusive(session: Session, old: TuningTargetRow, reason: str, now: datetime) -> None:
    """Record an inconclusive retune (repeated measurement of a recommendation): the recommendation stays unchanged,
    and stale if it was stale. The caller has locked the target's row.
    """
    if old.recommended is not None:
        record_decision(session, old, old.recommended, DecisionAction.INCONCLUSIVE, SERVICE, reason[:2000], now)


def _renew(
    session: Session, old: TuningTargetRow, study: StudyRow, result: StudyResult, reason: str, now: datetime
) -> RecommendationRow:
    incumbent = old.recommended
    assert incumbent is not None
    row = lock_target(session, study, now)
    answer = incumbent.answer
    original = answer.renewed or EarlierVerdict(
        recommendation_id=incumbent.id,
        study_id=incumbent.study_id,
        verdict=answer.result.verdict,
        speedup=answer.result.speedup,
    )
    renewed = add_proposal(session, row, study, result, now, original)
    if row.recommended is None or row.recommended.answer.result.best.config == result.best.config:
        make_current(session, row, renewed, now)
        record_decision(session, row, renewed, DecisionAction.RENEWED, SERVICE, reason, now)
    else:
        # Another study has recommended something else on this fingerprint already.
        renewed.state = RecommendationState.RETIRED
        record_decision(
            session,
            row,
            renewed,
            DecisionAction.KEPT,
            SERVICE,
            f"{row.recommended.id} is recommended here already",
            now,
        )
    _supersede(session, old, row, now)
    return renewed


def _supersede(session: Session, old: TuningTargetRow, row: TuningTargetRow, now: datetime) -> None:
    """Move a tuning target (model, workload, cluster) to a new key, with the pin, the use count and the declared
    training run that were stored under the old key.
    """
    if (row.project_id, row.target_key) == (old.project_id, old.target_key) or old.superseded_by == row.target_key:
        return
    # Pin, uses and declared length describe the target and not the fingerprint, so they move with it.
    assert old.recommended is not None
    row.is_pinned = row.is_pinned or old.is_pinned
    row.uses, row.planned_gpu_seconds = max(row.uses, old.uses), row.planned_gpu_seconds or old.planned_gpu_seconds
    row.superseded_by, old.superseded_by = None, row.target_key
    old.version += 1
    row.version += 1
    record_decision(
        session, old, old.recommended, DecisionAction.SUPERSEDED, SERVICE, f"by target_key {row.target_key}", now
    )
    session.flush()


def is_incumbent(row: TuningTargetRow, study: StudyRow) -> bool:
    """Whether the current recommendation of a tuning target (model, workload, cluster) is still the incumbent, that
    is, the one that the study measured again.
    """
    return row.recommended is not None and row.recommended.answer.result.best.config == study.baseline


def _has_as_baseline(result: StudyResult, recommended: RecommendationRow) -> bool:
    """Whether the baseline with which a study's result was compared is the configuration that is recommended now."""
    return result.baseline.config == recommended.answer.result.best.config
