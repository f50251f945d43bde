"""Queries on the recommendations of studies and of tuning targets."""

from collections.abc import Collection, Sequence
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from shardtune.api_schemas.recommendations.best import RecommendationState
from shardtune.api_schemas.studies.study_state import StudyState
from shardtune.db.tables.best import RecommendationRow, TuningTargetRow
from shardtune.db.tables.studies import StudyRow


def of_studies(session: Session, study_ids: Sequence[str]) -> dict[str, RecommendationRow]:
    """Return one recommendation for each study: the one that is current, else the newest one."""
    query = select(RecommendationRow).where(RecommendationRow.study_id.in_(study_ids))
    is_recommended = RecommendationRow.state == RecommendationState.RECOMMENDED
    # Of one study the last of them stays.
    return {row.study_id: row for row in session.scalars(query.order_by(is_recommended, RecommendationRow.created_at))}


def newest_of_study(session: Session, study_id: str) -> RecommendationRow | None:
    """Return the newest recommendation of a study."""
    query = select(RecommendationRow).where(RecommendationRow.study_id == study_id)
    return session.scalars(query.order_by(RecommendationRow.created_at.desc()).limit(1)).one_or_none()


def keys_of_target(session: Session, project_id: str, target_key: str) -> Sequence[str]:
    """Return the keys of a tuning target (model + workload + cluster), one for each fingerprint (hardware and
    software versions) on which it had a recommendation."""
    own = select(TuningTargetRow.target_key_without_fingerprint).where(
        TuningTargetRow.project_id == project_id, TuningTargetRow.target_key == target_key
    )
    query = select(TuningTargetRow.target_key).where(
        TuningTargetRow.project_id == project_id,
        TuningTargetRow.target_key_without_fingerprint == own.scalar_subquery(),
    )
    return session.scalars(query).all()


def of_target(
    session: Session, project_id: str, target_keys: Collection[str], at_most: int
) -> Sequence[RecommendationRow]:
    """Return the recommendations under the given tuning target keys, newest first."""
    query = select(RecommendationRow).where(
        RecommendationRow.project_id == project_id, RecommendationRow.target_key.in_(target_keys)
    )
    return session.scalars(query.order_by(RecommendationRow.created_at.desc()).limit(at_most)).all()


def times(session: Session, recommendation_ids: Collection[str]) -> dict[str, datetime]:
    """Return the creation times of the recommendations with the given ids, by id."""
    if not recommendation_ids:
        return {}
    query = select(RecommendationRow.id, RecommendationRow.created_at)
    return dict(session.execute(query.where(RecommendationRow.id.in_(recommendation_ids))).all())


def active_recommendations(session: Session, study_id: str) -> Sequence[RecommendationRow]:
    """Return a study's recommendations that are current or wait for approval."""
    states = (RecommendationState.RECOMMENDED, RecommendationState.PROPOSED)
    query = select(RecommendationRow).where(RecommendationRow.study_id == study_id, RecommendationRow.state.in_(states))
    return session.scalars(query.order_by(RecommendationRow.created_at, RecommendationRow.id)).all()


def retired_recommendations(session: Session, study_id: str) -> Sequence[RecommendationRow]:
    """Return a study's recommendations that another one has replaced, so that a rollback may return to them."""
    query = select(RecommendationRow).where(
        RecommendationRow.study_id == study_id, RecommendationRow.state == RecommendationState.RETIRED
    )
    # As they are stored now: the caller reads them again once it has locked their targets.
    return session.scalars(query.execution_options(populate_existing=True)).all()


def studies_without_recommendation(session: Session) -> Sequence[StudyRow]:
    """Return complete studies that have no recommendation, because they ended before the database stored
    recommendations."""
    recommended = select(RecommendationRow.study_id)
    query = select(StudyRow).where(
        StudyRow.state == StudyState.COMPLETE, StudyRow.id.not_in(recommended), StudyRow.system_study.is_(None)
    )
    return session.scalars(query.order_by(StudyRow.finished_at)).all()
