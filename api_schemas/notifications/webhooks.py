"""Schemas of webhooks, which send events to a receiver's URL, and the state of each message (standardwebhooks.com)."""

from datetime import datetime
from enum import StrEnum

from pydantic import Field, field_validator

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.notifications.events import DEFAULT_WEBHOOK_EVENTS, EVENT_TYPES


class WebhookSpec(Schema):
    """Request to create a webhook, which sends events to a URL."""

    url: str = Field(min_length=8, max_length=2000)
    """URL that receives the events: `https://…` or `http://…`; private, loopback and metadata addresses are rejected
    unless the operator allows them."""
    events: tuple[str, ...] = Field(default=DEFAULT_WEBHOOK_EVENTS, max_length=len(EVENT_TYPES))
    """Types of events to send, such as `study.complete`. By default these are ends of studies and changes of
    recommendations. An empty list means all types."""
    study_id: str | None = Field(default=None, max_length=32)
    """Id of the study whose events are sent; if None, the events of all studies are sent."""

    @field_validator("events")
    @classmethod
    def _check_types(cls, events: tuple[str, ...]) -> tuple[str, ...]:
        for event in events:
            if event not in EVENT_TYPES:
                raise ValueError(f"events ({event!r:.80}) is not a type of event; choose from {', '.join(EVENT_TYPES)}")
        return tuple(dict.fromkeys(events))


class Webhook(WebhookSpec):
    """Webhook as stored, with its state and timestamps."""

    webhook_id: str
    is_enabled: bool
    disabled_reason: str | None = None
    """Reason why the service stopped delivering events to the webhook; None if it did not. `:enable` resumes
    delivery."""
    created_at: datetime


class WebhookWithSecret(Webhook):
    """Response to the creation of a webhook or the rotation of its secret; no other response contains the secret."""

    secret: str
    """Secret (`whsec_…`) with which the receiver verifies the `webhook-signature` header. Shown only once."""


class DeliveryState(StrEnum):
    """Delivery state of a webhook message."""

    WAITING = "waiting"
    DELIVERED = "delivered"
    FAILED = "failed"


class Delivery(Schema):
    """Message to one webhook, with its delivery state."""

    delivery_id: str
    """Id of the message, sent in the `webhook-id` header. It is the same at each delivery attempt, so that receivers
    can ignore duplicates."""
    type: str
    state: DeliveryState
    tries: int
    status: int | None = None
    """HTTP status of the receiver's last response."""
    error: str | None = None
    """Reason why the last delivery attempt failed."""
    created_at: datetime
    next_at: datetime | None = None
    """Time of the next delivery attempt; None if none is planned."""
    finished_at: datetime | None = None
