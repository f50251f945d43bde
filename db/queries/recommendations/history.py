"""Queries on the history of tuning targets: earlier recommendations, and decisions about them."""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from shardtune.api_schemas.recommendations.best import DecisionAction, RecommendationState
from shardtune.db.tables.best import DecisionRow, RecommendationRow, TuningTargetRow

_RECOMMENDING_ACTIONS = (
    DecisionAction.RECOMMENDED,
    DecisionAction.RENEWED,
    DecisionAction.APPROVED,
    DecisionAction.PINNED,
    DecisionAction.ROLLED_BACK,
)
"""Decision actions that make a recommendation the current one of its tuning target (model, workload, cluster)."""


def earlier_recommendations(session: Session, recommendation: RecommendationRow) -> Sequence[RecommendationRow]:
    """Return the recommendations under the same target key that are older than the given one, newest first."""
    query = select(RecommendationRow).where(
        RecommendationRow.project_id == recommendation.project_id,
        RecommendationRow.target_key == recommendation.target_key,
        RecommendationRow.created_at <= recommendation.created_at,
        RecommendationRow.id != recommendation.id,
    )
    return session.scalars(query.order_by(RecommendationRow.created_at.desc(), RecommendationRow.id.desc())).all()


def recommendations(
    session: Session,
    project_id: str | None,
    target_key: str | None,
    states: Sequence[RecommendationState],
    after: tuple[datetime, str] | None,
    limit: int,
) -> Sequence[RecommendationRow]:
    """Return a page of recommendations, newest first, starting behind `after`."""
    time, name = RecommendationRow.created_at, RecommendationRow.id
    query = select(RecommendationRow).order_by(time.desc(), name.desc()).limit(limit)
    if project_id is not None:
        query = query.where(RecommendationRow.project_id == project_id)
    if target_key is not None:
        query = query.where(RecommendationRow.target_key == target_key)
    if states:
        query = query.where(RecommendationRow.state.in_(states))
    if after is not None:
        query = query.where(or_(time < after[0], (time == after[0]) & (name < after[1])))
    return session.scalars(query).all()


def decisions(
    session: Session, project_id: str, target_key: str, after: int | None, limit: int
) -> Sequence[DecisionRow]:
    """Return decisions about a tuning target (model, workload, cluster), newest first, starting behind the row
    `after`."""
    query = select(DecisionRow).where(DecisionRow.project_id == project_id, DecisionRow.target_key == target_key)
    query = query.order_by(DecisionRow.id.desc()).limit(limit)
    return session.scalars(query if after is None else query.where(DecisionRow.id < after)).all()


def is_approved(session: Session, recommendation_id: str) -> bool:
    """Return whether a person has approved a recommendation."""
    query = select(DecisionRow.id).where(
        DecisionRow.recommendation_id == recommendation_id, DecisionRow.action == DecisionAction.APPROVED
    )
    return session.scalars(query.limit(1)).first() is not None


def previous_recommendation(session: Session, row: TuningTargetRow) -> RecommendationRow | None:
    """Return the recommendation of a tuning target (model, workload, cluster) that was in force before the present
    one. If its study was extended since then, return that study's newest one, as that is its answer now."""
    query = (
        select(RecommendationRow, DecisionRow.created_at)
        .join(DecisionRow, DecisionRow.recommendation_id == RecommendationRow.id)
        .where(
            DecisionRow.project_id == row.project_id,
            DecisionRow.target_key == row.target_key,
            DecisionRow.action.in_(_RECOMMENDING_ACTIONS),
            DecisionRow.recommendation_id != row.recommended_id,
            RecommendationRow.state == RecommendationState.RETIRED,
        )
        .order_by(DecisionRow.id.desc())
        .limit(1)
    )
    previous = session.execute(query).first()
    if previous is None:
        return None
    recommendation, decided_at = previous
    return _newer_of_study(session, recommendation, decided_at) or recommendation


def _newer_of_study(session: Session, recommendation: RecommendationRow, since: datetime) -> RecommendationRow | None:
    """Return the newest recommendation of the same study and tuning target that was measured after a point in time, but
    never came into force, because another study's was in force then."""
    query = select(RecommendationRow).where(
        RecommendationRow.study_id == recommendation.study_id,
        RecommendationRow.project_id == recommendation.project_id,
        RecommendationRow.target_key == recommendation.target_key,
        RecommendationRow.state == RecommendationState.RETIRED,
        RecommendationRow.created_at > since,
    )
    newest_first = query.order_by(RecommendationRow.created_at.desc(), RecommendationRow.id.desc())
    return session.scalars(newest_first.limit(1)).first()
