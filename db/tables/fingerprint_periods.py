"""Table of the periods in which workers had each fingerprint (hardware and software versions)."""

from datetime import datetime

from sqlalchemy import ForeignKey, Index, String, text
from sqlalchemy.orm import Mapped, mapped_column, relationship

from shardtune.db.tables.base import Row
from shardtune.db.tables.fingerprints import FingerprintRow
from shardtune.db.tables.workers import WorkerRow

_PRESENT = text("until IS NULL")


class FingerprintPeriodRow(Row):
    """Table row of a period in which a worker had one fingerprint (hardware and software versions). It begins when
    the worker registers with this fingerprint, and ends when it registers with another."""

    __tablename__ = "fingerprint_periods"

    id: Mapped[int] = mapped_column(primary_key=True)
    worker_id: Mapped[str] = mapped_column(String(32), ForeignKey("workers.id"))
    fingerprint_key: Mapped[str] = mapped_column(ForeignKey("fingerprints.key"))
    predecessor_key: Mapped[str | None] = mapped_column(ForeignKey("fingerprints.key"))
    """Key of the fingerprint (hardware and software versions) that the worker had before. None if the worker was new,
    or if its history was not recorded then."""
    since: Mapped[datetime]
    until: Mapped[datetime | None]
    """End of the period; None if the worker has not registered with another fingerprint (hardware and software
    versions) since."""

    worker: Mapped[WorkerRow] = relationship()
    fingerprint: Mapped[FingerprintRow] = relationship(foreign_keys=fingerprint_key)
    predecessor: Mapped[FingerprintRow | None] = relationship(foreign_keys=predecessor_key)

    __table_args__ = (
        Index(
            "uq_fingerprint_periods_present",
            "worker_id",
            unique=True,
            sqlite_where=_PRESENT,
            postgresql_where=_PRESENT,
        ),
        Index("ix_fingerprint_periods_fingerprint", "fingerprint_key", "since"),
    )
