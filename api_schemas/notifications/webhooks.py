"""Webhooks: who is told what, and what became of each message (standardwebhooks.com)."""

from datetime import datetime
from enum import StrEnum

from pydantic import Field, field_validator

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.notifications.events import EVENT_TYPES, WHAT_MATTERS


class WebhookSpec(Schema):
    """Whom to tell of what."""

    url: str = Field(min_length=8, max_length=2000)
    """`https://…` or `http://…`; private, loopback and metadata addresses are rejected unless the operator allows them."""
    events: tuple[str, ...] = Field(default=WHAT_MATTERS, max_length=len(EVENT_TYPES))
    """Types of events, such as `study.complete`; left out: ends of studies and what becomes of answers; empty: all."""
    study_id: str | None = Field(default=None, max_length=32)
    """Only events of this study."""

    @field_validator("events")
    @classmethod
    def _known(cls, events: tuple[str, ...]) -> tuple[str, ...]:
        for event in events:
            if event not in EVENT_TYPES:
                raise ValueError(f"events ({event!r:.80}) is not a type of event; choose from {', '.join(EVENT_TYPES)}")
        return tuple(dict.fromkeys(events))


class Webhook(WebhookSpec):
    """A webhook as stored."""

    webhook_id: str
    is_enabled: bool
    disabled_reason: str | None = None
    """Why the service stopped delivering; `:enable` starts it again."""
    created_at: datetime


class WebhookWithSecret(Webhook):
    """The answer to creating or rotating, and the only one that has the secret."""

    secret: str
    """`whsec_…`: verifies the `webhook-signature` header. Shown once."""


class DeliveryState(StrEnum):
    """What became of a message."""

    WAITING = "waiting"
    DELIVERED = "delivered"
    FAILED = "failed"


class Delivery(Schema):
    """One message to one webhook."""

    delivery_id: str
    """The `webhook-id` header, the same at each try: receivers drop what they have had."""
    type: str
    state: DeliveryState
    tries: int
    status: int | None = None
    """HTTP status of the last answer."""
    error: str | None = None
    """Why the last try failed."""
    created_at: datetime
    next_at: datetime | None = None
    """When it is tried (again)."""
    finished_at: datetime | None = None
