"""Table of raw traces: recordings of the ranks of a run under the profiler, as the ranks compressed them."""

from datetime import datetime

from sqlalchemy import ForeignKey, Index, LargeBinary, String
from sqlalchemy.orm import Mapped, mapped_column

from shardtune.db.tables.base import Row
from shardtune.db.tables.studies import RunRow


class TraceRow(Row):
    """Raw trace of one rank."""

    __tablename__ = "traces"

    run_id: Mapped[str] = mapped_column(ForeignKey(RunRow.id, ondelete="CASCADE"), primary_key=True)
    rank: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    project_id: Mapped[str] = mapped_column(String(64))
    """Project of its study; each project has one bound for all its traces."""
    size: Mapped[int]
    """Size in bytes."""
    content: Mapped[bytes] = mapped_column(LargeBinary, deferred=True)
    created_at: Mapped[datetime]

    __table_args__ = (Index("ix_traces_project_id", "project_id", "created_at"),)
