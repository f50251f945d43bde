"""Take back what a study recommends: what was served before it takes its place, or nothing."""

from datetime import datetime

from sqlalchemy.orm import Session

from shardtune.api_schemas.notifications.events import EventType
from shardtune.api_schemas.recommendations.best import DecisionAction, RecommendationState
from shardtune.db.queries import best
from shardtune.db.tables.best import RecommendationRow, TuningTargetRow
from shardtune.service.recommendations.record import note_decision, notify, serve


def withdraw(session: Session, found: RecommendationRow, by: str, why: str, now: datetime) -> None:
    """Of a recommendation that is served or waits for approval. The caller holds its study."""
    row = best.lock(session, found.project_id, found.target_key)
    assert row is not None, found.id
    earlier = None
    if row.serving_id == found.id:
        earlier = best.served_before(session, row)
        _serve_instead(session, row, earlier, now)
    # Not retired: going back to what was served before must not bring it back.
    found.state = RecommendationState.REJECTED
    row.version += 1
    note_decision(session, row, found, DecisionAction.WITHDRAWN, by, why, now)
    if earlier is not None:
        note_decision(session, row, earlier, DecisionAction.ROLLED_BACK, by, why, now)
        notify(session, EventType.BEST_REPLACED, earlier, now)
    session.flush()


def _serve_instead(session: Session, row: TuningTargetRow, earlier: RecommendationRow | None, now: datetime) -> None:
    row.is_pinned = False
    if earlier is not None:
        serve(session, row, earlier, now, is_new=False)
        return
    row.serving, row.serving_id, row.fingerprint_key = None, None, None
    row.updated_at = now
