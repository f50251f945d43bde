"""Store and read raw profiler traces, within each project's storage limit."""

import sqlite3
from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import delete, func, literal_column, or_, select, tuple_
from sqlalchemy.orm import Session

from shardtune.db.tables.traces import TraceRow
from shardtune.db.tables.trials import RunRow


class StoredContent(NamedTuple):
    """Identity and size of one stored trace."""

    run_id: str
    rank: int
    size: int
    created_at: datetime
    """Time at which the trace was stored; a trace that replaces this one has a later time."""


def put(
    session: Session,
    run: RunRow,
    project_id: str,
    rank: int,
    content: bytes | bytearray,
    most_bytes: int,
    now: datetime,
) -> None:
    """Store a rank's trace, and delete traces of the trial's earlier runs. The project's oldest traces are also
    deleted, until all its traces together take at most `most_bytes`."""
    earlier = select(RunRow.id).where(RunRow.trial_id == run.trial_id, RunRow.id != run.id)
    same = (TraceRow.run_id == run.id) & (TraceRow.rank == rank)
    session.execute(delete(TraceRow).where(or_(same, TraceRow.run_id.in_(earlier))))
    size = select(TraceRow.run_id, TraceRow.rank, TraceRow.size).where(TraceRow.project_id == project_id)
    oldest = session.execute(size.order_by(TraceRow.created_at, TraceRow.run_id, TraceRow.rank)).all()
    excess = sum(trace.size for trace in oldest) + len(content) - most_bytes
    gone = []
    for trace in oldest:
        if excess <= 0:
            break
        excess -= trace.size
        gone.append((trace.run_id, trace.rank))
    session.execute(delete(TraceRow).where(tuple_(TraceRow.run_id, TraceRow.rank).in_(gone)))
    session.add(
        TraceRow(run_id=run.id, rank=rank, project_id=project_id, size=len(content), content=content, created_at=now)
    )


def stored(session: Session, run_id: str) -> Sequence[tuple[int, int]]:
    """Return rank and size in bytes of each stored trace of a run."""
    query = select(TraceRow.rank, TraceRow.size).where(TraceRow.run_id == run_id).order_by(TraceRow.rank)
    return [(trace.rank, trace.size) for trace in session.execute(query)]


def find(session: Session, run_id: str, rank: int) -> StoredContent | None:
    """Return the identity and size of a rank's trace; None if it is not stored or was deleted."""
    query = select(TraceRow.size, TraceRow.created_at).where(TraceRow.run_id == run_id, TraceRow.rank == rank)
    row = session.execute(query).one_or_none()
    return None if row is None else StoredContent(run_id, rank, row.size, row.created_at)


def piece(session: Session, trace: StoredContent, start: int, length: int) -> bytes:
    """Return a piece of the stored, compressed bytes of a trace; empty if the trace was deleted or replaced since."""
    same = (TraceRow.run_id == trace.run_id, TraceRow.rank == trace.rank, TraceRow.created_at == trace.created_at)
    if session.get_bind().dialect.name != "sqlite":
        return (
            session.scalars(select(func.substr(TraceRow.content, start + 1, length)).where(*same)).one_or_none() or b""
        )
    row_id = session.scalars(select(literal_column("rowid")).select_from(TraceRow).where(*same)).one_or_none()
    if row_id is None:
        return b""
    # SQLite's substr() would load the whole trace for each piece.
    connection = session.connection().connection.driver_connection
    assert isinstance(connection, sqlite3.Connection)
    with connection.blobopen(TraceRow.__tablename__, "content", row_id, readonly=True) as blob:
        blob.seek(start)
        return blob.read(length)
