"""Store and read raw profiler traces, within each project's storage limit."""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import delete, or_, select, tuple_
from sqlalchemy.orm import Session

from shardtune.db.tables.studies import RunRow
from shardtune.db.tables.traces import TraceRow


def put(
    session: Session, run: RunRow, project_id: str, rank: int, content: bytes, most_bytes: int, now: datetime
) -> None:
    """Store a rank's trace and delete traces of the trial's earlier runs; also delete the project's oldest traces until
    `most_bytes` suffices."""
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


def content(session: Session, run_id: str, rank: int) -> bytes | None:
    """Return a trace as compressed by the rank; None if it is not stored or was deleted."""
    query = select(TraceRow.content).where(TraceRow.run_id == run_id, TraceRow.rank == rank)
    return session.scalars(query).one_or_none()
