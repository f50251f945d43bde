"""Table of fingerprints (hardware and software versions of measurements)."""

from datetime import datetime

from sqlalchemy import Index, String
from sqlalchemy.orm import Mapped, mapped_column

from shardtune.api_schemas.machines.hardware import Fingerprint
from shardtune.db.tables.base import Row
from shardtune.db.tables.types import Stored


class FingerprintRow(Row):
    """Table row of a fingerprint (hardware and software versions of a measurement), stored once and identified by its
    content."""

    __tablename__ = "fingerprints"

    key: Mapped[str] = mapped_column(String(32), primary_key=True)
    value: Mapped[Fingerprint] = mapped_column(Stored(Fingerprint))
    first_seen_at: Mapped[datetime]

    __table_args__ = (Index("ix_fingerprints_first_seen_at", "first_seen_at", "key"),)
