"""Queries on retuning schedules and their ticks (planned or manual executions)."""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import JSON, CursorResult, and_, func, not_, select, tuple_, type_coerce, update
from sqlalchemy.orm import Session, joinedload

from shardtune.api_schemas.retuning.retunes import OPEN_RETUNE_STATES, RetuneOutcome, RetuneState
from shardtune.api_schemas.retuning.schedules import TickKind, TickState, Trigger
from shardtune.db.tables.best import TuningTargetRow
from shardtune.db.tables.retunes import RetuneRow, ScheduleRow, ScheduleTickRow


def get(session: Session, schedule_id: str) -> ScheduleRow | None:
    """Return one schedule without locking it."""
    return session.get(ScheduleRow, schedule_id)


def lock(session: Session, schedule_id: str) -> ScheduleRow | None:
    """Return one schedule, locked until the transaction ends, as it is stored now."""
    query = select(ScheduleRow).where(ScheduleRow.id == schedule_id).with_for_update(key_share=True)
    return session.scalars(query.execution_options(populate_existing=True)).one_or_none()


def page(
    session: Session, project_id: str | None, after: tuple[datetime, str] | None, limit: int
) -> Sequence[ScheduleRow]:
    """Return a page of schedules, newest first, starting behind `after`."""
    time, name = ScheduleRow.created_at, ScheduleRow.id
    query = select(ScheduleRow).order_by(time.desc(), name.desc()).limit(limit)
    if project_id is not None:
        query = query.where(ScheduleRow.project_id == project_id)
    return session.scalars(query if after is None else query.where(tuple_(time, name) < after)).all()


def count(session: Session, project_id: str) -> int:
    """Return the number of schedules of a project."""
    query = select(func.count()).select_from(ScheduleRow).where(ScheduleRow.project_id == project_id)
    return session.scalars(query).one()


def of_trigger(session: Session, project_id: str, trigger: Trigger) -> Sequence[ScheduleRow]:
    """Return a project's schedules with a given trigger, oldest first, including paused ones."""
    query = select(ScheduleRow).where(ScheduleRow.project_id == project_id, ScheduleRow.trigger == trigger)
    return session.scalars(query.order_by(ScheduleRow.created_at, ScheduleRow.id)).all()


def with_cron(session: Session, trigger: Trigger) -> Sequence[ScheduleRow]:
    """Return the schedules with a given trigger that have a cron expression, in all projects, including paused ones."""
    query = select(ScheduleRow).where(
        ScheduleRow.trigger == trigger, type_coerce(ScheduleRow.spec, JSON)["cron"].as_string().is_not(None)
    )
    return session.scalars(query.order_by(ScheduleRow.created_at, ScheduleRow.id)).all()


def due(session: Session, now: datetime) -> Sequence[ScheduleRow]:
    """Return the schedules that have a tick (moment at which they run) that is due and that no replica has processed."""
    query = select(ScheduleRow).where(ScheduleRow.next_tick_at <= now, ScheduleRow.is_paused.is_(False))
    return session.scalars(query.order_by(ScheduleRow.next_tick_at)).all()


def advance(session: Session, schedule: ScheduleRow, next_tick_at: datetime | None) -> bool:
    """Claim for this replica the ticks of a schedule that were due before `following`. False if the schedule was
    changed, paused or advanced since it was read, for example by another replica."""
    result = session.execute(
        update(ScheduleRow)
        .where(
            ScheduleRow.id == schedule.id,
            ScheduleRow.next_tick_at == schedule.next_tick_at,
            ScheduleRow.version == schedule.version,
            ScheduleRow.is_paused.is_(False),
        )
        .values(next_tick_at=next_tick_at)
        .execution_options(synchronize_session=False)
    )
    assert isinstance(result, CursorResult)
    return result.rowcount == 1


def ticks(session: Session, schedule_id: str, after: int | None, limit: int) -> Sequence[ScheduleTickRow]:
    """Return ticks of a schedule (moments at which it was due), newest first, starting behind the row `after`."""
    query = select(ScheduleTickRow).where(ScheduleTickRow.schedule_id == schedule_id)
    query = query.order_by(ScheduleTickRow.id.desc()).limit(limit)
    return session.scalars(query if after is None else query.where(ScheduleTickRow.id < after)).all()


def tick_at(session: Session, schedule_id: str, kind: TickKind, at: datetime) -> ScheduleTickRow | None:
    """Return the tick of a schedule that was due at the given moment; it records what happened then."""
    return session.scalars(
        select(ScheduleTickRow).where(
            ScheduleTickRow.schedule_id == schedule_id, ScheduleTickRow.kind == kind, ScheduleTickRow.at == at
        )
    ).one_or_none()


def queued_ticks(session: Session, schedule_id: str) -> Sequence[ScheduleTickRow]:
    """Return the ticks that wait for retunes (repeated measurements of recommendations) of earlier ticks, oldest
    first."""
    query = select(ScheduleTickRow).where(
        ScheduleTickRow.schedule_id == schedule_id, ScheduleTickRow.state == TickState.QUEUED
    )
    return session.scalars(query.order_by(ScheduleTickRow.at, ScheduleTickRow.id)).all()


def with_queued_ticks(session: Session) -> Sequence[str]:
    """Return the ids of the schedules that are not paused and have ticks (moments at which they were due) that still
    wait."""
    query = select(ScheduleTickRow.schedule_id).where(ScheduleTickRow.state == TickState.QUEUED).distinct()
    query = query.join(ScheduleRow, ScheduleRow.id == ScheduleTickRow.schedule_id)
    return session.scalars(query.where(ScheduleRow.is_paused.is_(False))).all()


def is_busy(session: Session, schedule_id: str, now: datetime) -> bool:
    """Whether retunes (repeated measurements of recommendations) requested by the schedule are unfinished. One that
    may not be tried before a later moment does not count, because a worker for it may never return."""
    is_put_off = and_(RetuneRow.state == RetuneState.QUEUED, RetuneRow.not_before > now)
    query = select(RetuneRow.id).where(RetuneRow.schedule_id == schedule_id, RetuneRow.state.in_(OPEN_RETUNE_STATES))
    return session.scalars(query.where(not_(is_put_off)).limit(1)).first() is not None


def cancel_queued(session: Session, schedule_id: str, now: datetime, reason: str) -> None:
    """Cancel what a schedule has requested and what has not begun: its waiting ticks and its queued retunes (repeated
    measurements of recommendations)."""
    session.execute(
        update(ScheduleTickRow)
        .where(ScheduleTickRow.schedule_id == schedule_id, ScheduleTickRow.state == TickState.QUEUED)
        .values(state=TickState.SKIPPED, reason=reason)
    )
    session.execute(
        update(RetuneRow)
        .where(RetuneRow.schedule_id == schedule_id, RetuneRow.state == RetuneState.QUEUED)
        .values(state=RetuneState.ENDED, outcome=RetuneOutcome.SKIPPED, reason=reason, ended_at=now)
    )


def recommended_targets(session: Session, project_id: str) -> Sequence[TuningTargetRow]:
    """Return the tuning targets (model, workload, cluster) of a project that have a recommendation, newest first."""
    present = (TuningTargetRow.recommended_id.is_not(None), TuningTargetRow.superseded_by.is_(None))
    query = select(TuningTargetRow).where(TuningTargetRow.project_id == project_id, *present)
    return session.scalars(
        query.order_by(TuningTargetRow.updated_at.desc()).options(joinedload(TuningTargetRow.recommended))
    ).all()
