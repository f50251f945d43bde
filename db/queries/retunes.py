"""Queries on retunes (repeated measurements of recommendations)."""

import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import JSON, CursorResult, and_, func, or_, select, tuple_, type_coerce, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from shardtune.api_schemas.retuning.retunes import OPEN_RETUNE_STATES, RetuneCause, RetuneOutcome, RetuneState
from shardtune.db.tables.best import TuningTargetRow
from shardtune.db.tables.retunes import RetuneRow, ScheduleRow
from shardtune.db.tables.studies import StudyRow

_MOST_RACES = 8


@dataclass(frozen=True)
class RetuneFilter:
    """Filter of retunes (repeated measurements of recommendations); a field that is None or empty matches any value."""

    project_id: str | None = None
    target_key: str | None = None
    schedule_id: str | None = None
    states: tuple[RetuneState, ...] = ()


def get(session: Session, retune_id: str) -> RetuneRow | None:
    """Return one retune (repeated measurement of a recommendation) without locking it."""
    return session.get(RetuneRow, retune_id)


def lock(session: Session, retune_id: str) -> RetuneRow:
    """Return one retune (repeated measurement of a recommendation), locked until the transaction ends, as it is
    stored now."""
    query = select(RetuneRow).where(RetuneRow.id == retune_id).with_for_update(key_share=True)
    return session.scalars(query.execution_options(populate_existing=True)).one()


def unfinished(session: Session, project_id: str, target_key: str) -> RetuneRow | None:
    """Return the queued or running retune (repeated measurement of a recommendation) of a tuning target (model,
    workload, cluster), locked until the transaction ends."""
    query = select(RetuneRow).where(
        RetuneRow.project_id == project_id, RetuneRow.target_key == target_key, RetuneRow.state.in_(OPEN_RETUNE_STATES)
    )
    query = query.with_for_update(key_share=True).execution_options(populate_existing=True)
    return session.scalars(query).one_or_none()


def put(
    session: Session,
    project_id: str,
    target_key: str,
    cause: RetuneCause,
    not_before: datetime,
    now: datetime,
    **values: Any,
) -> tuple[RetuneRow, bool]:
    """Return the unfinished retune (repeated measurement of a recommendation) of a tuning target (model, workload,
    cluster), locked; create it if there is none. The second value says whether this call has created it."""
    insert = postgresql.insert if session.get_bind().dialect.name == "postgresql" else sqlite.insert
    for _ in range(_MOST_RACES):
        retune_id = f"retune-{secrets.token_hex(6)}"
        row: dict[str, Any] = {
            "id": retune_id,
            "project_id": project_id,
            "target_key": target_key,
            "cause": cause,
            "changes": (),
            "state": RetuneState.QUEUED,
            "gpu_seconds": 0.0,
            "not_before": not_before,
            "tries": 0,
            "created_at": now,
            **values,
        }
        session.execute(insert(RetuneRow).values(row).on_conflict_do_nothing())
        unfinished_row = unfinished(session, project_id, target_key)
        # None: the one that was in the way has ended between the two statements.
        if unfinished_row is not None:
            return unfinished_row, unfinished_row.id == retune_id
    raise AssertionError(f"retunes of {target_key} end as fast as they are made")


def page(
    session: Session, criteria: RetuneFilter, after: tuple[datetime, str] | None, limit: int
) -> Sequence[RetuneRow]:
    """Return a page of retunes (repeated measurements of recommendations), newest first, starting behind `after`."""
    time, name = RetuneRow.created_at, RetuneRow.id
    query = select(RetuneRow).order_by(time.desc(), name.desc()).limit(limit)
    if criteria.project_id is not None:
        query = query.where(RetuneRow.project_id == criteria.project_id)
    if criteria.target_key is not None:
        query = query.where(RetuneRow.target_key == criteria.target_key)
    if criteria.schedule_id is not None:
        query = query.where(RetuneRow.schedule_id == criteria.schedule_id)
    if criteria.states:
        query = query.where(RetuneRow.state.in_(criteria.states))
    if after is not None:
        query = query.where(tuple_(time, name) < after)
    return session.scalars(query).all()


def due(session: Session, now: datetime) -> Sequence[RetuneRow]:
    """Return queued retunes (repeated measurements of recommendations) that are due, those of the most used
    recommendation first."""
    used = and_(TuningTargetRow.project_id == RetuneRow.project_id, TuningTargetRow.target_key == RetuneRow.target_key)
    query = (
        select(RetuneRow)
        .outerjoin(TuningTargetRow, used)
        .where(RetuneRow.state == RetuneState.QUEUED, RetuneRow.not_before <= now)
        .order_by(func.coalesce(TuningTargetRow.uses, 0).desc(), RetuneRow.created_at, RetuneRow.id)
    )
    return session.scalars(query).all()


def running(session: Session) -> Sequence[RetuneRow]:
    """Return the running retunes (repeated measurements of recommendations), oldest first."""
    query = select(RetuneRow).where(RetuneRow.state == RetuneState.RUNNING)
    return session.scalars(query.order_by(RetuneRow.started_at, RetuneRow.id)).all()


def claim(session: Session, row: RetuneRow, now: datetime, until: datetime, **values: Any) -> bool:
    """Claim a retune (repeated measurement of a recommendation) for this replica and change it, if its state is still
    that of `row` and no replica has claimed it."""
    result = session.execute(
        update(RetuneRow)
        .where(
            RetuneRow.id == row.id,
            RetuneRow.state == row.state,
            or_(RetuneRow.claimed_until.is_(None), RetuneRow.claimed_until <= now),
        )
        .values(claimed_until=until, **values)
        .execution_options(synchronize_session=False)
    )
    assert isinstance(result, CursorResult)
    return result.rowcount == 1


def spent(session: Session, row: RetuneRow) -> float:
    """Return the GPU-seconds that the studies of a retune (repeated measurement of a recommendation) have used so
    far."""
    names = [name for name in (row.challenge_study_id, row.search_study_id) if name is not None]
    query = select(func.coalesce(func.sum(StudyRow.gpu_seconds), 0.0)).where(StudyRow.id.in_(names))
    return session.scalars(query).one() or 0.0


def end(session: Session, row: RetuneRow, outcome: RetuneOutcome, reason: str, now: datetime) -> None:
    """End a retune (repeated measurement of a recommendation) that the caller has locked."""
    row.state, row.outcome, row.reason, row.ended_at = RetuneState.ENDED, outcome, reason, now
    row.claimed_until, row.gpu_seconds, row.waits_for_budget = None, spent(session, row), False
    session.flush()


def add_uses(session: Session, counts: Mapping[tuple[str, str], int]) -> None:
    """Add the numbers of requests for recommendations to the stored counts, by project and tuning target key."""
    for (project_id, target_key), count in sorted(counts.items()):
        session.execute(
            update(TuningTargetRow)
            .where(TuningTargetRow.project_id == project_id, TuningTargetRow.target_key == target_key)
            .values(uses=TuningTargetRow.uses + count)
            .execution_options(synchronize_session=False)
        )


def newest(session: Session, cases: Collection[tuple[str, str]]) -> dict[tuple[str, str], RetuneRow]:
    """Return the most recently requested retune (repeated measurement of a recommendation) of each given tuning
    target. A target (model, workload, cluster) is given by its project_id and target_key."""
    if not cases:
        return {}
    case = (RetuneRow.project_id, RetuneRow.target_key)
    place = func.row_number().over(partition_by=case, order_by=(RetuneRow.created_at.desc(), RetuneRow.id.desc()))
    ranked = select(RetuneRow.id, place.label("place")).where(tuple_(*case).in_(cases)).subquery()
    query = select(RetuneRow).join(ranked, ranked.c.id == RetuneRow.id).where(ranked.c.place == 1)
    return {(row.project_id, row.target_key): row for row in session.scalars(query)}


def with_schedules(session: Session, ids: Collection[str]) -> dict[str, tuple[RetuneRow, str | None]]:
    """Return retunes (repeated measurements of recommendations) by id, each with the name of the schedule that
    requested it."""
    if not ids:
        return {}
    name = type_coerce(ScheduleRow.spec, JSON)["name"].as_string()
    query = select(RetuneRow, name).outerjoin(ScheduleRow, ScheduleRow.id == RetuneRow.schedule_id)
    return {row.id: (row, name) for row, name in session.execute(query.where(RetuneRow.id.in_(ids)))}
