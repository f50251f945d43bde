"""Table of raw traces: profiler recordings of a run's ranks, as compressed by the ranks."""

from datetime import datetime

from sqlalchemy import ForeignKey, Index, LargeBinary, String
from sqlalchemy.orm import Mapped, mapped_column

from shardtune.db.tables.base import Row
from shardtune.db.tables.trials import RunRow


class TraceRow(Row):
    """Table row of one rank's raw profiler trace."""

    __tablename__ = "traces"

    run_id: Mapped[str] = mapped_column(ForeignKey(RunRow.id, ondelete="CASCADE"), primary_key=True)
    rank: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    project_id: Mapped[str] = mapped_column(String(64))
    """Project of the trace's study; each project has one storage limit for all its traces."""
    size: Mapped[int]
    """Size of the trace in bytes."""
    content: Mapped[bytes] = mapped_column(LargeBinary, deferred=True)
    created_at: Mapped[datetime]

    __table_args__ = (Index("ix_traces_project_id", "project_id", "created_at"),)
