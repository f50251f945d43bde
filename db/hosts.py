"""Queries on hosts that several workers share: their runs and waits. The rules are
service.leasing.host_exclusivity's."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import and_, func, or_, select, text, update
from sqlalchemy.orm import Session

from shardtune.api_schemas.machines.host_partition import HostPartition, HostWait
from shardtune.api_schemas.studies.system_studies import SystemStudy
from shardtune.api_schemas.trials.trial import RunPurpose, TrialState
from shardtune.db.tables.studies import AttemptRow, RunRow, StudyRow, WorkerRow

_HOLD = text("SELECT pg_advisory_xact_lock(hashtextextended(:name, 0))")


@dataclass(frozen=True)
class CoTenant:
    """Another worker of the same host."""

    host_partition: HostPartition
    seen_at: datetime
    host_wait: HostWait | None
    purpose: RunPurpose | None
    """Purpose of the run that it executes; None: it executes nothing."""
    system_study: SystemStudy | None
    """System study of that run; None for a user's study."""


def lock_host(session: Session, host_id: str) -> None:
    """Lock a host, so that no other transaction grants runs on it until this one ends. SQLite has one writer at a
    time.

    By note [lock order] the host is locked after the study, so that no two transactions wait for each other.
    """
    if session.get_bind().dialect.name == "postgresql":
        session.execute(_HOLD, {"name": f"host {host_id}"})


def co_tenants(session: Session, worker: WorkerRow) -> Sequence[CoTenant]:
    """Return the other workers of a host that run or wait for something. The caller holds the host."""
    query = (
        select(WorkerRow.offer, WorkerRow.seen_at, WorkerRow.host_wait, RunRow.purpose, StudyRow.system_study)
        .outerjoin(RunRow, and_(RunRow.worker_id == WorkerRow.id, RunRow.state == TrialState.RUNNING))
        .outerjoin(StudyRow, StudyRow.id == RunRow.study_id)
        .where(WorkerRow.host_id == worker.host_id, WorkerRow.id != worker.id)
        .where(or_(RunRow.id.is_not(None), and_(WorkerRow.host_wait.is_not(None), WorkerRow.is_draining.is_(False))))
    )
    return [
        CoTenant(offer.share, seen_at, waits, purpose, system_study)
        for offer, seen_at, waits, purpose, system_study in session.execute(query)
        if offer.share is not None
    ]


def count_concurrent_workers(session: Session, run: RunRow) -> int:
    """Count the other workers of a run's host that executed something since the run began."""
    query = (
        select(func.count(AttemptRow.worker_id.distinct()))
        .join(WorkerRow, WorkerRow.id == AttemptRow.worker_id)
        .where(WorkerRow.host_id == run.host_id, WorkerRow.id != run.worker_id)
        .where(or_(AttemptRow.finished_at.is_(None), AttemptRow.finished_at > run.started_at))
    )
    return session.scalars(query).one()


def clear_host_wait(session: Session, worker_session: str) -> None:
    """Note that the worker waits for nothing on its host any more."""
    session.execute(update(WorkerRow).where(WorkerRow.session == worker_session).values(waits=None))
