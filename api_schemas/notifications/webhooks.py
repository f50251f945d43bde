"""Webhooks: receivers of events, and the state of each message (standardwebhooks.com)."""

from datetime import datetime
from enum import StrEnum

from pydantic import Field, field_validator

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.notifications.events import DEFAULT_WEBHOOK_EVENTS, EVENT_TYPES


class WebhookSpec(Schema):
    """Request to send events to an address."""

    url: str = Field(min_length=8, max_length=2000)
    """Address: `https://…` or `http://…`; private, loopback and metadata addresses are rejected unless the operator
    allows them."""
    events: tuple[str, ...] = Field(default=DEFAULT_WEBHOOK_EVENTS, max_length=len(EVENT_TYPES))
    """Types of events, such as `study.complete`. Left out: ends of studies and changes of recommendations; empty:
    all."""
    study_id: str | None = Field(default=None, max_length=32)
    """Study to which the events are limited; None: all studies."""

    @field_validator("events")
    @classmethod
    def _check_types(cls, events: tuple[str, ...]) -> tuple[str, ...]:
        for event in events:
            if event not in EVENT_TYPES:
                raise ValueError(f"events ({event!r:.80}) is not a type of event; choose from {', '.join(EVENT_TYPES)}")
        return tuple(dict.fromkeys(events))


class Webhook(WebhookSpec):
    """Webhook as stored."""

    webhook_id: str
    is_enabled: bool
    disabled_reason: str | None = None
    """Reason why the service stopped delivering; `:enable` starts it again."""
    created_at: datetime


class WebhookWithSecret(Webhook):
    """Answer to creating or rotating a webhook, and the only one that has the secret."""

    secret: str
    """Secret (`whsec_…`) that verifies the `webhook-signature` header. Shown once."""


class DeliveryState(StrEnum):
    """State of a message."""

    WAITING = "waiting"
    DELIVERED = "delivered"
    FAILED = "failed"


class Delivery(Schema):
    """Message to one webhook."""

    delivery_id: str
    """Id in the `webhook-id` header, the same at each try: receivers drop messages that they have had."""
    type: str
    state: DeliveryState
    tries: int
    status: int | None = None
    """HTTP status of the last answer."""
    error: str | None = None
    """Reason why the last try failed."""
    created_at: datetime
    next_at: datetime | None = None
    """Time of the next try; None: there is none."""
    finished_at: datetime | None = None
