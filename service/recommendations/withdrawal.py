"""Withdraw a study's recommendation; the previous recommendation, if there is one, becomes current again."""

from datetime import datetime

from sqlalchemy.orm import Session

from shardtune.api_schemas.notifications.events import EventType
from shardtune.api_schemas.recommendations.best import DecisionAction, RecommendationState
from shardtune.db.queries import best
from shardtune.db.queries.recommendations import history, study_recommendations
from shardtune.db.tables.best import RecommendationRow, TuningTargetRow
from shardtune.db.tables.studies import StudyRow
from shardtune.service.recommendations.record import SERVICE, DecidedBy, make_current, notify, record_decision
from shardtune.service.recommendations.target_report import take_back_confirmation


def withdraw(session: Session, recommendation: RecommendationRow, by: DecidedBy, reason: str, now: datetime) -> None:
    """Withdraw a study's recommendation that is current or waits for approval. The caller has locked the study."""
    row = best.lock(session, recommendation.project_id, recommendation.target_key)
    assert row is not None, recommendation.id
    earlier = None
    if row.recommended_id == recommendation.id:
        # An earlier result of the same study is no better: the study itself was deleted or is contradicted.
        reject_replaced(session, recommendation.study_id)
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


def reject_replaced(session: Session, study_id: str) -> None:
    """Reject a study's recommendations that others have replaced, so that none of them comes back when those are
    withdrawn or rolled back. The caller has locked the study."""
    replaced = study_recommendations.retired_recommendations(session, study_id)
    for project_id, target_key in sorted({(item.project_id, item.target_key) for item in replaced}):
        best.lock(session, project_id, target_key)
    # Read again under the lock: one may have been made current just now.
    for recommendation in study_recommendations.retired_recommendations(session, study_id):
        recommendation.state = RecommendationState.REJECTED
    session.flush()


def withdraw_contradicted(session: Session, study: StudyRow, reason: str, now: datetime) -> None:
    """Withdraw the recommendations of an extended study whose new runs contradict its result. A recommendation that an
    administrator has pinned or approved stays, and its history gives the reason. The caller has locked the study.
    """
    for recommendation in study_recommendations.active_recommendations(session, study.id):
        if is_decided(session, recommendation):
            row = best.lock(session, recommendation.project_id, recommendation.target_key)
            assert row is not None, recommendation.id
            note = f"stays, because an administrator pinned or approved it; {reason}"
            record_decision(session, row, recommendation, DecisionAction.INCONCLUSIVE, SERVICE, note[:2000], now)
            row.version += 1
        else:
            withdraw(session, recommendation, SERVICE, reason[:2000], now)
    # Where another study's recommendation is current, this study's must not come back after it.
    reject_replaced(session, study.id)
    take_back_confirmation(session, study, now)


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
