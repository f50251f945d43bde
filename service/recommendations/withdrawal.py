"""Withdraw a study's recommendation; the previous recommendation, if there is one, becomes current again."""

from datetime import datetime

from sqlalchemy.orm import Session

from shardtune.api_schemas.notifications.events import EventType
from shardtune.api_schemas.recommendations.best import DecisionAction, RecommendationState
from shardtune.db.queries import best
from shardtune.db.queries.recommendations import history
from shardtune.db.tables.best import RecommendationRow, TuningTargetRow
from shardtune.service.recommendations.record import DecidedBy, make_current, notify, record_decision


def withdraw(session: Session, recommendation: RecommendationRow, by: DecidedBy, reason: str, now: datetime) -> None:
    """Withdraw a study's recommendation that is current or waits for approval. The caller has locked the study."""
    row = best.lock(session, recommendation.project_id, recommendation.target_key)
    assert row is not None, recommendation.id
    earlier = None
    if row.recommended_id == recommendation.id:
        earlier = history.previous_recommendation(session, row)
        _make_current_instead(session, row, earlier, now)
    # Rejected, not retired: a later rollback must not bring it back.
    recommendation.state = RecommendationState.REJECTED
    row.version += 1
    record_decision(session, row, recommendation, DecisionAction.WITHDRAWN, by, reason, now)
    if earlier is not None:
        record_decision(session, row, earlier, DecisionAction.ROLLED_BACK, by, reason, now)
        notify(session, EventType.BEST_REPLACED, earlier, now)
    session.flush()


def is_decided(session: Session, recommendation: RecommendationRow) -> bool:
    """Whether an administrator has pinned or approved a recommendation. The caller has locked the study."""
    row = best.lock(session, recommendation.project_id, recommendation.target_key)
    is_pinned = row is not None and row.is_pinned and row.recommended_id == recommendation.id
    return is_pinned or history.is_approved(session, recommendation.id)


def _make_current_instead(
    session: Session, row: TuningTargetRow, earlier: RecommendationRow | None, now: datetime
) -> None:
    # A pin belonged to the withdrawn recommendation.
    row.is_pinned = False
    if earlier is not None:
        make_current(session, row, earlier, now, is_new=False)
        return
    row.recommended, row.recommended_id, row.fingerprint_key = None, None, None
    row.updated_at = now
