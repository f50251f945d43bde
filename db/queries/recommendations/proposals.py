"""Queries on proposals: recommendations that wait for a person's approval."""

from collections.abc import Collection

from sqlalchemy import and_, select, tuple_
from sqlalchemy.orm import Session

from shardtune.api_schemas.recommendations.best import RecommendationState
from shardtune.db.tables.best import RecommendationRow, TuningTargetRow


def newest_proposal(session: Session, project_id: str, target_key: str) -> RecommendationRow | None:
    """Return the newest recommendation of a tuning target (model, workload, cluster) that waits for approval."""
    return session.scalars(
        select(RecommendationRow)
        .where(
            RecommendationRow.project_id == project_id,
            RecommendationRow.target_key == target_key,
            RecommendationRow.state == RecommendationState.PROPOSED,
        )
        .order_by(RecommendationRow.created_at.desc(), RecommendationRow.id.desc())
        .limit(1)
    ).one_or_none()


def newest_proposal_on_any_fingerprint(
    session: Session, project_id: str, target_keys_without_fingerprint: Collection[str]
) -> RecommendationRow | None:
    """Return the newest recommendation that waits for approval, for the given tuning targets (model, workload,
    cluster) on any fingerprint (hardware and software versions)."""
    same = and_(
        TuningTargetRow.project_id == RecommendationRow.project_id,
        TuningTargetRow.target_key == RecommendationRow.target_key,
    )
    query = select(RecommendationRow).join(TuningTargetRow, same)
    query = query.where(
        TuningTargetRow.project_id == project_id,
        TuningTargetRow.target_key_without_fingerprint.in_(target_keys_without_fingerprint),
        RecommendationRow.state == RecommendationState.PROPOSED,
    )
    newest = query.order_by(RecommendationRow.created_at.desc(), RecommendationRow.id.desc())
    return session.scalars(newest.limit(1)).one_or_none()


def newest_proposals(session: Session, cases: Collection[tuple[str, str]]) -> dict[tuple[str, str], RecommendationRow]:
    """Return the newest proposal for each of the given tuning targets, in one query. A target (model, workload,
    cluster) is given by its project and target_key."""
    case = tuple_(RecommendationRow.project_id, RecommendationRow.target_key)
    query = select(RecommendationRow).where(case.in_(cases), RecommendationRow.state == RecommendationState.PROPOSED)
    rows = session.scalars(query.order_by(RecommendationRow.created_at, RecommendationRow.id))
    return {(row.project_id, row.target_key): row for row in rows}
