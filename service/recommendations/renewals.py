"""What a retune's study means for what is served: the incumbent is renewed, and a faster configuration is put to consent.

The key of a case contains the fingerprint, so on a changed one the answer stands under a new key. The old row stays as
it was, with the key that superseded it: whoever asks by the old key is given the present answer, and told so. Pin and
approval go over to the new row with the incumbent, which is always renewed there first: so a replacement can be rolled back.
"""

from datetime import datetime

from sqlalchemy.orm import Session

from shardtune.api_schemas.notifications.events import EventType
from shardtune.api_schemas.recommendations.best import DecisionAction, RecommendationState, Renewed
from shardtune.api_schemas.studies.study import StudyResult, Verdict
from shardtune.db.tables.best import RecommendationRow, TuningTargetRow
from shardtune.db.tables.studies import StudyRow
from shardtune.service.process.context import Context
from shardtune.service.recommendations.record import (
    SERVICE,
    needs_approval,
    note_decision,
    notify,
    recommend,
    serve,
    served_case,
    speed,
)

SERVED, PROPOSED, KEPT_BACK = "is served", "waits for approval", "is kept back: what is served there is faster"


def keep(session: Session, old: TuningTargetRow, study: StudyRow, why: str, now: datetime) -> RecommendationRow:
    """The incumbent still stands: it is fresh again, with what the study measured. The caller holds study and row."""
    assert study.result is not None
    found = _renew(session, old, study, study.result, why, now)
    notify(session, EventType.BEST_RENEWED, found, now, reason=why)
    return found


def replace(context: Context, session: Session, old: TuningTargetRow, study: StudyRow, why: str) -> str:
    """Another configuration was shown to be faster: serve it, or put it to those who decide; says which.

    The caller holds study and row.
    """
    assert study.result is not None and old.serving is not None
    now = context.now()
    if _is_of(study.result, old.serving):
        stands = study.result.baseline
        beside = StudyResult(best=stands, baseline=stands, speedup=None, verdict=Verdict.NOT_FASTER, notes=(why,))
        _renew(session, old, study, beside, "measured beside what replaces it", now)
    row = served_case(session, study, now)
    found = recommend(session, row, study, study.result, now)
    if needs_approval(context, study) or row.is_pinned or old.is_pinned:
        notify(session, EventType.BEST_PROPOSED, found, now, reason=why)
        return PROPOSED
    serving = row.serving
    is_other = row.target_key != old.target_key and serving is not None and not _is_of(study.result, serving)
    if is_other and serving is not None and speed(serving) >= speed(found):
        found.state = RecommendationState.RETIRED
        note_decision(session, row, found, DecisionAction.KEPT, SERVICE, f"{serving.id} is faster", now)
        _supersede(session, old, row, now)
        return KEPT_BACK
    serve(session, row, found, now)
    note_decision(session, row, found, DecisionAction.SERVED, SERVICE, why, now)
    _supersede(session, old, row, now)
    notify(session, EventType.BEST_REPLACED, found, now, reason=why)
    return SERVED


def leave(session: Session, old: TuningTargetRow, why: str, now: datetime) -> None:
    """Nothing was decided: what is served stays as it is, stale where it was. The caller holds the row."""
    if old.serving is not None:
        note_decision(session, old, old.serving, DecisionAction.INCONCLUSIVE, SERVICE, why[:2000], now)


def _renew(
    session: Session, old: TuningTargetRow, study: StudyRow, result: StudyResult, why: str, now: datetime
) -> RecommendationRow:
    incumbent = old.serving
    assert incumbent is not None
    row = served_case(session, study, now)
    before = incumbent.answer
    first = before.renewed or Renewed(
        recommendation_id=incumbent.id,
        study_id=incumbent.study_id,
        verdict=before.result.verdict,
        speedup=before.result.speedup,
    )
    found = recommend(session, row, study, result, now, first)
    if row.serving is None or row.serving.answer.result.best.config == result.best.config:
        serve(session, row, found, now)
        note_decision(session, row, found, DecisionAction.RENEWED, SERVICE, why, now)
    else:
        # The case was decided on this fingerprint already, by a study of its own.
        found.state = RecommendationState.RETIRED
        note_decision(
            session, row, found, DecisionAction.KEPT, SERVICE, f"{row.serving.id} is served here already", now
        )
    _supersede(session, old, row, now)
    return found


def _supersede(session: Session, old: TuningTargetRow, row: TuningTargetRow, now: datetime) -> None:
    """The case goes on under its new key, with the consent given under the old one."""
    if (row.project_id, row.target_key) == (old.project_id, old.target_key) or old.superseded_by == row.target_key:
        return
    assert old.serving is not None
    row.is_pinned = row.is_pinned or old.is_pinned
    row.uses, row.planned_gpu_seconds = max(row.uses, old.uses), row.planned_gpu_seconds or old.planned_gpu_seconds
    row.superseded_by, old.superseded_by = None, row.target_key
    old.version += 1
    row.version += 1
    note_decision(session, old, old.serving, DecisionAction.SUPERSEDED, SERVICE, f"by target_key {row.target_key}", now)
    session.flush()


def is_incumbent(row: TuningTargetRow, study: StudyRow) -> bool:
    """Whether what is served now is what the study took for the incumbent."""
    return row.serving is not None and row.serving.answer.result.best.config == study.baseline


def _is_of(result: StudyResult, serving: RecommendationRow) -> bool:
    """The result's baseline is what is served."""
    return result.baseline.config == serving.answer.result.best.config
