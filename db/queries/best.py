"""Queries on tuning targets and their current recommendations; older ones are in `db.queries.recommendations`."""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Select, select, tuple_
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session, joinedload

from shardtune.api_schemas.machines.fingerprints import Freshness
from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.studies.study_state import OPEN_STUDY_STATES
from shardtune.db.tables.best import RecommendationRow, TuningTargetRow
from shardtune.db.tables.studies import StudyRow

_MOST_CANDIDATES = 100


def get_target(session: Session, project_id: str, target_key: str) -> TuningTargetRow | None:
    """Return the tuning target (model, workload, cluster) with a key, and its recommendation. The query makes two
    lookups by primary key, so its time does not depend on the table's size."""
    query = select(TuningTargetRow).where(
        TuningTargetRow.project_id == project_id, TuningTargetRow.target_key == target_key
    )
    return session.scalars(query.options(joinedload(TuningTargetRow.recommended))).one_or_none()


def get_targets(session: Session, cases: Collection[tuple[str, str]]) -> dict[tuple[str, str], TuningTargetRow]:
    """Return several tuning targets (model, workload, cluster), each given by its project and target_key, in one
    query."""
    query = select(TuningTargetRow).where(tuple_(TuningTargetRow.project_id, TuningTargetRow.target_key).in_(cases))
    rows = session.scalars(query.options(joinedload(TuningTargetRow.recommended)))
    return {(row.project_id, row.target_key): row for row in rows}


def current_target(session: Session, project_id: str, target_key: str) -> TuningTargetRow | None:
    """Return the current row of a tuning target (model, workload, cluster): the row with its key, or the row that
    replaced it after a measurement on other hardware or software."""
    row = get_target(session, project_id, target_key)
    while row is not None and row.superseded_by is not None:
        row = get_target(session, project_id, row.superseded_by)
    return row


def targets_on_any_fingerprint(
    session: Session, project_id: str, target_key_without_fingerprint: str
) -> Sequence[TuningTargetRow]:
    """Return the rows of a tuning target (model, workload, cluster) that have a recommendation, newest first. Each
    row is for another fingerprint (hardware and software versions)."""
    return session.scalars(
        _with_recommendation(
            TuningTargetRow.project_id == project_id,
            TuningTargetRow.target_key_without_fingerprint == target_key_without_fingerprint,
        ).options(joinedload(TuningTargetRow.recommended))
    ).all()


def nearby_targets(
    session: Session, project_id: str, model_key: str, model_type: str, device: str
) -> Sequence[TuningTargetRow]:
    """Return the newest tuning targets (model, workload, cluster) with the same model, or else with the same
    architecture on the same device type; their recommendations are loaded on access."""
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
    """Return the projects that have a recommended configuration, which retunes (repeated measurements of
    recommendations) and canaries (speed checks) may measure."""
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
    """Return the recommendations with the given ids."""
    if not recommendation_ids:
        return ()
    return session.scalars(select(RecommendationRow).where(RecommendationRow.id.in_(recommendation_ids))).all()


def lock(session: Session, project_id: str, target_key: str) -> TuningTargetRow | None:
    """Return the tuning target (model, workload, cluster) with a key, locked until the transaction ends."""
    query = select(TuningTargetRow).where(
        TuningTargetRow.project_id == project_id, TuningTargetRow.target_key == target_key
    )
    query = query.with_for_update(key_share=True, of=TuningTargetRow)
    return session.scalars(query.execution_options(populate_existing=True)).one_or_none()


def put(session: Session, project_id: str, target_key: str, now: datetime, **keys: str) -> TuningTargetRow:
    """Return the row of a tuning target (model, workload, cluster), locked until the transaction ends; create it if
    necessary."""
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


def last_resolving_study(session: Session, project_id: str, resolve_key: str) -> StudyRow | None:
    """Return the newest study that was started because no configuration was known for this tuning target (model,
    workload, cluster)."""
    return session.scalars(
        select(StudyRow)
        .where(StudyRow.project_id == project_id, StudyRow.resolve_key == resolve_key, StudyRow.deleted_at.is_(None))
        .order_by(StudyRow.created_at.desc())
        .limit(1)
    ).one_or_none()


def is_resolved_by_another(session: Session, study: StudyRow) -> bool:
    """Whether another open study was started because no configuration was known for the same tuning target (model,
    workload, cluster) as this study."""
    query = select(StudyRow.id).where(
        StudyRow.project_id == study.project_id,
        StudyRow.resolve_key == study.resolve_key,
        StudyRow.state.in_(OPEN_STUDY_STATES),
        StudyRow.id != study.id,
    )
    return study.resolve_key is not None and session.scalars(query.limit(1)).first() is not None
