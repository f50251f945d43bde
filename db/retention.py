"""Delete expired rows, in batches that hold locks only briefly."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, CursorResult, delete, exists, select, tuple_, update
from sqlalchemy.orm import InstrumentedAttribute, Session

from shardtune.api_schemas.retuning.schedules import TickState
from shardtune.db.tables.access import IdempotentRow
from shardtune.db.tables.best import TuningTargetRow
from shardtune.db.tables.canaries import CanaryRow
from shardtune.db.tables.events import EventRow
from shardtune.db.tables.fingerprint_periods import FingerprintPeriodRow
from shardtune.db.tables.fingerprints import FingerprintRow
from shardtune.db.tables.retunes import ScheduleTickRow
from shardtune.db.tables.studies import StudyRow
from shardtune.db.tables.traces import TraceRow
from shardtune.db.tables.trials import AttemptRow, RunRow
from shardtune.db.tables.webhooks import DeliveryRow
from shardtune.db.tables.workers import WorkerRow

_BATCH = 1000


def delete_events(session: Session, before: datetime) -> int:
    """Delete events of ended studies written before a given moment."""
    ended = select(StudyRow.id).where(StudyRow.finished_at.is_not(None))
    old = select(EventRow.id).where(EventRow.created_at < before, EventRow.study_id.in_(ended)).limit(_BATCH)
    return _count(
        session.execute(delete(EventRow).where(EventRow.id.in_(old)).execution_options(**_WITHOUT_SYNCHRONIZING))
    )


def delete_deliveries(session: Session, before: datetime) -> int:
    """Delete webhook messages that were delivered or abandoned before a given moment."""
    old = select(DeliveryRow.id).where(DeliveryRow.finished_at < before).limit(_BATCH)
    return _count(
        session.execute(delete(DeliveryRow).where(DeliveryRow.id.in_(old)).execution_options(**_WITHOUT_SYNCHRONIZING))
    )


def delete_ticks(session: Session, before: datetime) -> int:
    """Delete ticks of schedules (moments at which a schedule was due) that were processed before a given moment.
    Ticks that still wait are kept."""
    old = select(ScheduleTickRow.id).where(
        ScheduleTickRow.created_at < before, ScheduleTickRow.state != TickState.QUEUED
    )
    gone = delete(ScheduleTickRow).where(ScheduleTickRow.id.in_(old.limit(_BATCH)))
    return _count(session.execute(gone.execution_options(**_WITHOUT_SYNCHRONIZING)))


def delete_idempotent(session: Session, before: datetime) -> int:
    """Delete stored responses to requests with an idempotency key made before a given moment."""
    name = tuple_(IdempotentRow.scope, IdempotentRow.key)
    old = select(IdempotentRow.scope, IdempotentRow.key).where(IdempotentRow.created_at < before).limit(_BATCH)
    return _count(
        session.execute(delete(IdempotentRow).where(name.in_(old)).execution_options(**_WITHOUT_SYNCHRONIZING))
    )


def clear_log_tails(session: Session, before: datetime) -> int:
    """Clear the stored text output of the ranks of runs that ended before a given moment."""
    old = select(RunRow.id).where(RunRow.finished_at < before, RunRow.log_tail.is_not(None)).limit(_BATCH)
    changed = update(RunRow).where(RunRow.id.in_(old)).values(log_tail=None)
    return _count(session.execute(changed.execution_options(**_WITHOUT_SYNCHRONIZING)))


def delete_traces(session: Session, before: datetime) -> int:
    """Delete raw profiler traces stored before a given moment."""
    name = tuple_(TraceRow.run_id, TraceRow.rank)
    old = select(TraceRow.run_id, TraceRow.rank).where(TraceRow.created_at < before).limit(_BATCH)
    return _count(session.execute(delete(TraceRow).where(name.in_(old)).execution_options(**_WITHOUT_SYNCHRONIZING)))


def delete_workers(session: Session, before: datetime) -> int:
    """Delete workers that never ran anything and sent no request since a given moment, with the record of their
    fingerprints. A worker that comes back or gets a run meanwhile is kept."""
    unused = (
        WorkerRow.seen_at < before,
        *(~exists().where(row.worker_id == WorkerRow.id) for row in (RunRow, AttemptRow, CanaryRow)),
    )
    ids = _lock_unused(session, WorkerRow.id, unused)
    for row in (FingerprintPeriodRow.worker_id, WorkerRow.id):
        session.execute(delete(row.class_).where(row.in_(ids)).execution_options(**_WITHOUT_SYNCHRONIZING))
    return len(ids)


def delete_fingerprints(session: Session, before: datetime) -> int:
    """Delete fingerprints (hardware and software versions) stored before a given moment and not referenced by any
    worker, study, run or recommendation."""
    naming = (
        WorkerRow.fingerprint_key,
        FingerprintPeriodRow.fingerprint_key,
        FingerprintPeriodRow.predecessor_key,
        StudyRow.fingerprint_key,
        RunRow.fingerprint_key,
        TuningTargetRow.fingerprint_key,
    )
    unused = (FingerprintRow.first_seen_at < before, *(~exists().where(name == FingerprintRow.key) for name in naming))
    keys = _lock_unused(session, FingerprintRow.key, unused)
    gone = delete(FingerprintRow).where(FingerprintRow.key.in_(keys))
    return _count(session.execute(gone.execution_options(**_WITHOUT_SYNCHRONIZING)))


def _lock_unused(
    session: Session, key: InstrumentedAttribute[str], unused: Sequence[ColumnElement[bool]]
) -> Sequence[str]:
    """Return the keys of rows that match the conditions, locked until the transaction ends."""
    # A row that another transaction holds is about to be used: neither wait for it nor delete it.
    candidates = select(key).where(*unused).limit(_BATCH).with_for_update(skip_locked=True)
    locked = session.scalars(candidates).all()
    # Read again: on Postgres, a reference may have been committed between the state that the query saw and its locks.
    # Under the locks, nothing can refer to the rows any more.
    return session.scalars(select(key).where(key.in_(locked), *unused)).all() if locked else ()


_WITHOUT_SYNCHRONIZING: dict[str, Any] = {"synchronize_session": False}


def _count(result: object) -> int:
    assert isinstance(result, CursorResult)
    return result.rowcount
