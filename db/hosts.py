"""Queries on hosts shared by several workers: their runs and waits. The rules are in service.leasing.host_exclusivity."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import and_, func, or_, select, text, update
from sqlalchemy.orm import Session

from shardtune.api_schemas.machines.host_partition import HostPartition, HostWait
from shardtune.api_schemas.studies.system_studies import SystemStudy
from shardtune.api_schemas.trials.trial import RunPurpose, TrialState
from shardtune.db.tables.studies import StudyRow
from shardtune.db.tables.trials import AttemptRow, RunRow
from shardtune.db.tables.workers import WorkerRow

_HOLD = text("SELECT pg_advisory_xact_lock(hashtextextended(:name, 0))")


@dataclass(frozen=True)
class CoTenant:
    """Other worker on the same host, with the run that it executes and its wait for the host."""

    host_partition: HostPartition
    seen_at: datetime
    host_wait: HostWait | None
    purpose: RunPurpose | None
    """Purpose of the run that the other worker executes; None if it executes none."""
    system_study: SystemStudy | None
    """System study (created by the service itself) to which the other worker's run belongs; None if a user's study."""


def lock_host(session: Session, host_id: str) -> None:
    """Lock a host until the transaction ends, so that no other transaction assigns runs to workers on it. On SQLite,
    which has only one writer at a time, nothing needs to be locked. The caller must have locked the study before
    (note [lock order] in db.session), so that transactions cannot deadlock."""
    if session.get_bind().dialect.name == "postgresql":
        session.execute(_HOLD, {"name": f"host {host_id}"})


def co_tenants(session: Session, worker: WorkerRow) -> Sequence[CoTenant]:
    """Return the other workers of a host that execute a run now or wait to execute one. The caller must have locked
    the host."""
    query = (
        select(WorkerRow.offer, WorkerRow.seen_at, WorkerRow.host_wait, RunRow.purpose, StudyRow.system_study)
        .outerjoin(RunRow, and_(RunRow.worker_id == WorkerRow.id, RunRow.state == TrialState.RUNNING))
        .outerjoin(StudyRow, StudyRow.id == RunRow.study_id)
        .where(WorkerRow.host_id == worker.host_id, WorkerRow.id != worker.id)
        .where(or_(RunRow.id.is_not(None), and_(WorkerRow.host_wait.is_not(None), WorkerRow.is_draining.is_(False))))
    )
    return [
        CoTenant(offer.host_partition, seen_at, waits, purpose, system_study)
        for offer, seen_at, waits, purpose, system_study in session.execute(query)
        if offer.host_partition is not None
    ]


def count_concurrent_workers(session: Session, run: RunRow) -> int:
    """Return the number of other workers on the host of a run that executed something at any time since this run
    began."""
    query = (
        select(func.count(AttemptRow.worker_id.distinct()))
        .join(WorkerRow, WorkerRow.id == AttemptRow.worker_id)
        .where(WorkerRow.host_id == run.host_id, WorkerRow.id != run.worker_id)
        .where(or_(AttemptRow.finished_at.is_(None), AttemptRow.finished_at > run.started_at))
    )
    return session.scalars(query).one()


def clear_host_wait(session: Session, worker_session: str) -> None:
    """Remove the record that a worker waits for its host."""
    session.execute(update(WorkerRow).where(WorkerRow.session == worker_session).values(host_wait=None))
