"""The table of raw traces: what the ranks of a run under the profiler recorded, as they compressed it."""

from datetime import datetime

from sqlalchemy import ForeignKey, Index, LargeBinary, String
from sqlalchemy.orm import Mapped, mapped_column

from shardtune.db.tables.base import Row
from shardtune.db.tables.studies import RunRow


class TraceRow(Row):
    """Of one rank."""

    __tablename__ = "traces"

    run_id: Mapped[str] = mapped_column(ForeignKey(RunRow.id, ondelete="CASCADE"), primary_key=True)
    rank: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    project_id: Mapped[str] = mapped_column(String(64))
    """Of its study; projects share one bound each."""
    size: Mapped[int]
    """Bytes."""
    content: Mapped[bytes] = mapped_column(LargeBinary, deferred=True)
    created_at: Mapped[datetime]

    __table_args__ = (Index("ix_traces_project_id", "project_id", "created_at"),)
