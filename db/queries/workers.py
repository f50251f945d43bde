"""Queries on workers: registration, sessions, lists, and those that may take work; their hardware is in
`db.queries.offered_hardware`."""

import secrets
from collections.abc import Collection, Sequence
from datetime import datetime

from sqlalchemy import JSON, ColumnElement, Select, bindparam, func, or_, select, tuple_, type_coerce, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session, undefer

from shardtune.api_schemas.machines.hardware import Inventory
from shardtune.api_schemas.trials.trial import TrialState
from shardtune.db.queries import fingerprints
from shardtune.db.tables.studies import StudyRow
from shardtune.db.tables.trials import RunRow
from shardtune.db.tables.workers import WorkerRow

# Statements of every request of a worker are made once: making one costs more than running it.
_BY_SESSION = select(WorkerRow).where(WorkerRow.session == bindparam("worker_session"))
_NOTE_SEEN = (
    update(WorkerRow)
    .where(WorkerRow.session == bindparam("worker_session"))
    .values(seen_at=bindparam("now"))
    .returning(WorkerRow.is_draining)
)
_MOST_FORGOTTEN = 1000
"""Maximum number of workers that one transaction hides from lists."""


def lock_by_name(session: Session, name: str, project_id: str | None) -> WorkerRow | None:
    """Return the worker that has a name in a project (or among the workers that serve every project), locked until
    the transaction ends."""
    whose = WorkerRow.project_id.is_(None) if project_id is None else WorkerRow.project_id == project_id
    query = select(WorkerRow).where(WorkerRow.name == name, whose).with_for_update(key_share=True)
    return session.scalars(query.execution_options(populate_existing=True)).one_or_none()


def count(session: Session, project_id: str | None) -> int:
    """Return the number of workers of a project. With None, count the workers that serve every project."""
    query = select(func.count()).select_from(WorkerRow).where(WorkerRow.project_id.is_not_distinct_from(project_id))
    query = query.where(WorkerRow.forgotten_at.is_(None))
    return session.scalars(query).one()


def put(
    session: Session,
    name: str,
    worker_session: str,
    inventory: Inventory,
    now: datetime,
    project_id: str | None = None,
    holder_id: str | None = None,
) -> WorkerRow:
    """Return the worker with a name, locked until the transaction ends; create it if necessary. The caller sets its
    owner and session."""
    key = fingerprints.put(session, inventory.fingerprint, now)
    row = lock_by_name(session, name, project_id)
    if row is None:
        insert = postgresql.insert if session.get_bind().dialect.name == "postgresql" else sqlite.insert
        values = {
            "id": f"worker-{secrets.token_hex(6)}",
            "name": name,
            "project_id": project_id,
            "holder_id": holder_id,
            "session": worker_session,
            "offer": inventory.offer,
            "inventory": inventory,
            "fingerprint_key": key,
            "host_id": _host_id(inventory, project_id),
            "registered_at": now,
            "seen_at": now,
            "is_draining": False,
        }
        # Two that begin under one name at once: one row, and the second finds whose it is.
        session.execute(insert(WorkerRow).values(values).on_conflict_do_nothing())
        row = lock_by_name(session, name, project_id)
        assert row is not None
    return row


def begin(
    session: Session, row: WorkerRow, worker_session: str, inventory: Inventory, now: datetime, holder_id: str | None
) -> None:
    """Store the new session of a worker that has started again, and what it offers (hardware, software and
    abilities). The caller must have locked the worker."""
    if row.session != worker_session:
        row.session, row.registered_at, row.host_wait = worker_session, now, None
        if row.set_aside is not None:
            # The restarted worker may be of another release by now.
            row.is_draining, row.set_aside = False, None
    row.inventory, row.offer, row.fingerprint_key = inventory, inventory.offer, inventory.fingerprint.content_key()
    row.seen_at, row.holder_id, row.forgotten_at = now, holder_id, None
    row.host_id = _host_id(inventory, row.project_id)
    session.flush()
    fingerprints.note_period(session, row.id, row.fingerprint_key, now)


def _host_id(inventory: Inventory, project_id: str | None) -> str | None:
    """Return an id for a host that is valid within one project only, so that a worker's claim to be on some host
    cannot block the workers of other projects."""
    return None if inventory.host_partition is None else f"{project_id or '*'}/{inventory.host_partition.host}"


def lock(session: Session, worker_id: str) -> WorkerRow | None:
    """Return a worker, locked until the transaction ends."""
    query = select(WorkerRow).where(WorkerRow.id == worker_id).with_for_update(key_share=True)
    return session.scalars(query.execution_options(populate_existing=True)).one_or_none()


def by_session(session: Session, worker_session: str) -> WorkerRow | None:
    """Return the worker to which a session belongs; each start of a worker begins a new session."""
    return session.scalars(_BY_SESSION, {"worker_session": worker_session}).one_or_none()


def note_seen(session: Session, worker_session: str, now: datetime) -> bool:
    """Record the time of a worker's request; return whether the worker was told to take no more runs."""
    return bool(session.connection().scalars(_NOTE_SEEN, {"worker_session": worker_session, "now": now}).one_or_none())


def page(session: Session, project_id: str | None, after: tuple[str, str] | None, limit: int) -> Sequence[WorkerRow]:
    """Return a page of all registered workers that serve a project (None means any project), by name, starting behind
    the name and id `after`."""
    query = _with_inventory(project_id).order_by(WorkerRow.name, WorkerRow.id).limit(limit)
    return session.scalars(query if after is None else query.where(tuple_(WorkerRow.name, WorkerRow.id) > after)).all()


def live_first(
    session: Session, project_id: str | None, live_since: datetime, offset: int, limit: int
) -> tuple[Sequence[WorkerRow], int]:
    """Return workers that serve a project (None means any project) starting at `offset`, first those with requests
    since `live_since`, then by name; and their total number."""
    total = session.scalar(select(func.count()).select_from(WorkerRow).where(*serving(project_id))) or 0
    query = _with_inventory(project_id).order_by((WorkerRow.seen_at >= live_since).desc(), WorkerRow.name, WorkerRow.id)
    return session.scalars(query.offset(offset).limit(limit)).all(), total


def _with_inventory(project_id: str | None) -> Select[WorkerRow]:
    """Make a query for workers also load their inventories (complete lists of hardware and software), which are
    displayed."""
    return select(WorkerRow).options(undefer(WorkerRow.inventory)).where(*serving(project_id))


def forget(row: WorkerRow, now: datetime) -> None:
    """Hide a worker from lists until it registers again in its session. The caller must have locked the worker."""
    row.forgotten_at, row.session, row.holder_id = now, f"gone-{secrets.token_urlsafe(24)}", None


def forget_gone(session: Session, before: datetime, now: datetime) -> int:
    """Forget (hide from lists) the workers without requests since a given moment; return their number."""
    gone = select(WorkerRow).where(WorkerRow.seen_at < before, WorkerRow.forgotten_at.is_(None))
    rows = session.scalars(gone.limit(_MOST_FORGOTTEN).with_for_update(skip_locked=True)).all()
    for row in rows:
        forget(row, now)
    return len(rows)


def serving(project_id: str | None) -> list[ColumnElement[bool]]:
    """Return the SQL conditions that select the registered workers that serve a project (None means any project)."""
    conditions: list[ColumnElement[bool]] = [WorkerRow.forgotten_at.is_(None)]
    whose = or_(WorkerRow.project_id.is_(None), WorkerRow.project_id == project_id)
    return conditions if project_id is None else [*conditions, whose]


def seen_since(
    session: Session, moment: datetime, only: Collection[str] | None = None, project_id: str | None = None
) -> Sequence[WorkerRow]:
    """Return the workers (all, or those with the given ids) that sent a request since a given moment and serve a
    project (None means any project), by name."""
    if only is not None and project_id is None:
        return session.scalars(_OF_THESE, {"moment": moment, "ids": list(only)}).all()
    query = select(WorkerRow).where(WorkerRow.seen_at >= moment, *serving(project_id)).order_by(WorkerRow.name)
    return session.scalars(query if only is None else query.where(WorkerRow.id.in_(only))).all()


def fingerprints_seen_since(session: Session, moment: datetime, project_id: str) -> Sequence[str]:
    """Return the fingerprint key (hash of hardware and software versions) of each worker that serves a project and
    sent a request since a given moment."""
    return session.scalars(
        select(WorkerRow.fingerprint_key).where(WorkerRow.seen_at >= moment, *serving(project_id))
    ).all()


def workers_supporting(session: Session, task_kind: str, moment: datetime) -> list[WorkerRow]:
    """Return the workers with requests since a given moment that accept runs, and whose release supports a kind of
    task."""
    query = select(WorkerRow).where(
        WorkerRow.seen_at >= moment,
        WorkerRow.is_draining.is_(False),
        offered("task_kinds").contains(f'"{task_kind}"'),
    )
    return [row for row in session.scalars(query) if task_kind in row.offer.task_kinds]


def offered(name: str) -> ColumnElement[str]:
    """Return an SQL expression that reads a field of the workers' stored offers (hardware and software) as text."""
    field: ColumnElement[str] = type_coerce(WorkerRow.offer, JSON)[name].as_string()
    return field


_OF_THESE = (
    select(WorkerRow)
    .where(
        WorkerRow.seen_at >= bindparam("moment"),
        WorkerRow.forgotten_at.is_(None),
        WorkerRow.id.in_(bindparam("ids", expanding=True)),
    )
    .order_by(WorkerRow.name)
)


def running_runs(session: Session, project_id: str | None) -> dict[str, str]:
    """Return the run that each worker executes now, limited to one project (None means all projects)."""
    query = select(RunRow.worker_id, RunRow.id).where(RunRow.state == TrialState.RUNNING)
    if project_id is not None:
        query = query.join(StudyRow, StudyRow.id == RunRow.study_id).where(StudyRow.project_id == project_id)
    return {worker_id: run_id for worker_id, run_id in session.execute(query) if worker_id is not None}
