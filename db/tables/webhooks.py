"""Tables of webhooks and of the messages to them."""

from datetime import datetime

from sqlalchemy import ForeignKey, Index, String, Text
from sqlalchemy.orm import Mapped, mapped_column, relationship

from shardtune.api_schemas.notifications.events import EventType
from shardtune.api_schemas.notifications.webhooks import DeliveryState
from shardtune.db.tables.access import ProjectRow
from shardtune.db.tables.base import Row
from shardtune.db.tables.studies import StudyRow
from shardtune.db.tables.types import Stored, words


class WebhookRow(Row):
    """Table row of a webhook. Its secret is derived when needed (service.webhooks.secrets) and never stored."""

    __tablename__ = "webhooks"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    url: Mapped[str] = mapped_column(Text)
    events: Mapped[tuple[EventType, ...]] = mapped_column(Stored(tuple[EventType, ...]))
    """Types of the events to send; an empty list stands for all types."""
    study_id: Mapped[str | None] = mapped_column(ForeignKey(StudyRow.id, ondelete="CASCADE"))
    project_id: Mapped[str | None] = mapped_column(ForeignKey(ProjectRow.id))
    """Project whose studies' events the webhook receives; None means all projects."""
    is_enabled: Mapped[bool]
    disabled_reason: Mapped[str | None] = mapped_column(Text)
    secret_version: Mapped[int]
    rotated_at: Mapped[datetime | None]
    created_at: Mapped[datetime]


class DeliveryRow(Row):
    """Table row of a message to one webhook, written together with its event."""

    __tablename__ = "deliveries"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    webhook_id: Mapped[str] = mapped_column(ForeignKey("webhooks.id", ondelete="CASCADE"))
    type: Mapped[str] = mapped_column(String(32))
    """Type of the event that the message reports, or `webhook.test`."""
    body: Mapped[str] = mapped_column(Text)
    """Body of the message, exactly as signed and sent."""
    state: Mapped[DeliveryState] = mapped_column(words(DeliveryState))
    tries: Mapped[int]
    status: Mapped[int | None]
    error: Mapped[str | None] = mapped_column(Text)
    created_at: Mapped[datetime]
    next_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]

    webhook: Mapped[WebhookRow] = relationship()

    __table_args__ = (
        Index("ix_deliveries_due", "state", "next_at"),
        Index("ix_deliveries_webhook", "webhook_id", "created_at"),
    )
