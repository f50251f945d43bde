"""Queries on recommendations, tuning targets and decisions."""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, or_, select, tuple_
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session, joinedload

from shardtune.api_schemas.machines.fingerprints import Freshness
from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.recommendations.best import DecisionAction, RecommendationState
from shardtune.api_schemas.studies.study import StudyState
from shardtune.db.tables.best import DecisionRow, RecommendationRow, TuningTargetRow
from shardtune.db.tables.studies import StudyRow

_MOST_CANDIDATES = 100
_RECOMMENDING_ACTIONS = (
    DecisionAction.RECOMMENDED,
    DecisionAction.RENEWED,
    DecisionAction.APPROVED,
    DecisionAction.PINNED,
    DecisionAction.ROLLED_BACK,
)
"""Decision actions that make a recommendation the current one of its tuning target."""


def get_target(session: Session, project_id: str, target_key: str) -> TuningTargetRow | None:
    """Return the tuning target with a key, with its recommendation: two lookups by primary key, independent of the
    table's size."""
    query = select(TuningTargetRow).where(
        TuningTargetRow.project_id == project_id, TuningTargetRow.target_key == target_key
    )
    return session.scalars(query.options(joinedload(TuningTargetRow.recommended))).one_or_none()


def get_targets(session: Session, cases: Collection[tuple[str, str]]) -> dict[tuple[str, str], TuningTargetRow]:
    """Return several tuning targets by project and target_key, in one query."""
    query = select(TuningTargetRow).where(tuple_(TuningTargetRow.project_id, TuningTargetRow.target_key).in_(cases))
    rows = session.scalars(query.options(joinedload(TuningTargetRow.recommended)))
    return {(row.project_id, row.target_key): row for row in rows}


def current_target(session: Session, project_id: str, target_key: str) -> TuningTargetRow | None:
    """Return the current row of a tuning target: the row with its key, or the row that superseded it after a
    measurement on another fingerprint."""
    row = get_target(session, project_id, target_key)
    while row is not None and row.superseded_by is not None:
        row = get_target(session, project_id, row.superseded_by)
    return row


def targets_on_any_fingerprint(
    session: Session, project_id: str, target_key_without_fingerprint: str
) -> Sequence[TuningTargetRow]:
    """Return the rows of a tuning target on any fingerprint that have a recommendation, newest first."""
    return session.scalars(
        _with_recommendation(
            TuningTargetRow.project_id == project_id,
            TuningTargetRow.target_key_without_fingerprint == target_key_without_fingerprint,
        ).options(joinedload(TuningTargetRow.recommended))
    ).all()


def nearby_targets(
    session: Session, project_id: str, model_key: str, model_type: str, device: str
) -> Sequence[TuningTargetRow]:
    """Return the newest tuning targets with the same model, or else with the same architecture on the same device type;
    their recommendations are loaded on access."""
    same = session.scalars(
        _with_recommendation(TuningTargetRow.project_id == project_id, TuningTargetRow.model_key == model_key)
    ).all()
    kind = (TuningTargetRow.model_type == model_type, TuningTargetRow.device == device)
    return same or session.scalars(_with_recommendation(TuningTargetRow.project_id == project_id, *kind)).all()


def recommended_clusters(session: Session, project_id: str) -> Sequence[Cluster]:
    """Return the clusters of all recommended configurations, newest first."""
    query = (
        select(StudyRow.cluster)
        .join(RecommendationRow, RecommendationRow.study_id == StudyRow.id)
        .join(TuningTargetRow, TuningTargetRow.recommended_id == RecommendationRow.id)
        .where(TuningTargetRow.project_id == project_id, TuningTargetRow.superseded_by.is_(None))
        .order_by(TuningTargetRow.updated_at.desc())
        .limit(_MOST_CANDIDATES)
    )
    return session.scalars(query).all()


def projects_with_recommendation(session: Session) -> Sequence[str]:
    """Return the projects that have a recommended configuration, which retunes and canaries may measure."""
    query = select(TuningTargetRow.project_id).where(TuningTargetRow.recommended_id.is_not(None)).distinct()
    return session.scalars(query).all()


def _with_recommendation(*conditions: ColumnElement[bool]) -> Select[TuningTargetRow]:
    present = (TuningTargetRow.recommended_id.is_not(None), TuningTargetRow.superseded_by.is_(None))
    return (
        select(TuningTargetRow)
        .where(*conditions, *present)
        .order_by(TuningTargetRow.updated_at.desc())
        .limit(_MOST_CANDIDATES)
    )


def recommendations_by_ids(session: Session, recommendation_ids: Sequence[str]) -> Sequence[RecommendationRow]:
    """Return recommendations by the given ids."""
    if not recommendation_ids:
        return ()
    return session.scalars(select(RecommendationRow).where(RecommendationRow.id.in_(recommendation_ids))).all()


def lock(session: Session, project_id: str, target_key: str) -> TuningTargetRow | None:
    """Return the tuning target with a key, locked until the transaction ends."""
    query = select(TuningTargetRow).where(
        TuningTargetRow.project_id == project_id, TuningTargetRow.target_key == target_key
    )
    query = query.with_for_update(key_share=True, of=TuningTargetRow)
    return session.scalars(query.execution_options(populate_existing=True)).one_or_none()


def put(session: Session, project_id: str, target_key: str, now: datetime, **keys: str) -> TuningTargetRow:
    """Return the row of a tuning target, locked until the transaction ends; create it if necessary."""
    insert = postgresql.insert if session.get_bind().dialect.name == "postgresql" else sqlite.insert
    values: dict[str, Any] = {
        "project_id": project_id,
        "target_key": target_key,
        "is_pinned": False,
        "freshness": Freshness.FRESH,
        "changed_fields": (),
        "stale_announced_for": (),
        "version": 0,
        "updated_at": now,
        **keys,
    }
    session.execute(insert(TuningTargetRow).values(values).on_conflict_do_nothing())
    row = lock(session, project_id, target_key)
    assert row is not None
    return row


def recommendation(session: Session, recommendation_id: str) -> RecommendationRow | None:
    return session.get(RecommendationRow, recommendation_id)


def newest_proposal(session: Session, project_id: str, target_key: str) -> RecommendationRow | None:
    """Return a tuning target's newest recommendation that waits for approval."""
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
    """Return the newest recommendation that waits for approval, for the given tuning targets on any fingerprint."""
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
    """Return the newest proposal of each given tuning target (project and target_key), in one query."""
    case = tuple_(RecommendationRow.project_id, RecommendationRow.target_key)
    query = select(RecommendationRow).where(case.in_(cases), RecommendationRow.state == RecommendationState.PROPOSED)
    rows = session.scalars(query.order_by(RecommendationRow.created_at, RecommendationRow.id))
    return {(row.project_id, row.target_key): row for row in rows}


def active_recommendations(session: Session, study_id: str) -> Sequence[RecommendationRow]:
    """Return a study's recommendations that are current or wait for approval."""
    states = (RecommendationState.RECOMMENDED, RecommendationState.PROPOSED)
    query = select(RecommendationRow).where(RecommendationRow.study_id == study_id, RecommendationRow.state.in_(states))
    return session.scalars(query.order_by(RecommendationRow.created_at, RecommendationRow.id)).all()


def earlier_recommendations(session: Session, recommendation: RecommendationRow) -> Sequence[RecommendationRow]:
    """Return the recommendations with the same key that are older than the given one, newest first."""
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
    """Return decisions about a tuning target, newest first, starting behind the row `after`."""
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
    """Return the recommendation that was current before the present one."""
    query = (
        select(RecommendationRow)
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
    return session.scalars(query).first()


def last_resolving_study(session: Session, project_id: str, resolve_key: str) -> StudyRow | None:
    """Return the newest study that was started because no configuration was known for this tuning target."""
    return session.scalars(
        select(StudyRow)
        .where(StudyRow.project_id == project_id, StudyRow.resolve_key == resolve_key, StudyRow.deleted_at.is_(None))
        .order_by(StudyRow.created_at.desc())
        .limit(1)
    ).one_or_none()


def studies_without_recommendation(session: Session) -> Sequence[StudyRow]:
    """Return complete studies without a recommendation, from before recommendations existed."""
    recommended = select(RecommendationRow.study_id)
    query = select(StudyRow).where(
        StudyRow.state == StudyState.COMPLETE, StudyRow.id.not_in(recommended), StudyRow.system_study.is_(None)
    )
    return session.scalars(query.order_by(StudyRow.finished_at)).all()
