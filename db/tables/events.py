"""Table of studies' events."""

from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey, Index, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from shardtune.api_schemas.notifications.events import EventType
from shardtune.db.tables.base import Row
from shardtune.db.tables.studies import StudyRow
from shardtune.db.tables.types import Stored, words


class EventRow(Row):
    """Table row of a study's event. `db.outbox` writes it in the transaction of the change that it reports, and never
    modifies it."""

    __tablename__ = "events"

    id: Mapped[int] = mapped_column(primary_key=True)
    study_id: Mapped[str] = mapped_column(ForeignKey(StudyRow.id, ondelete="CASCADE"))
    number: Mapped[int]
    type: Mapped[EventType] = mapped_column(words(EventType, 32))
    created_at: Mapped[datetime]
    data: Mapped[dict[str, Any]] = mapped_column(Stored(dict[str, Any]))

    __table_args__ = (UniqueConstraint("study_id", "number"), Index("ix_events_created_at", "created_at"))
