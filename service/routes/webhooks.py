"""Routes of webhooks."""

from typing import Annotated

from fastapi import APIRouter, Query

from shardtune.api_schemas.notifications.webhooks import Delivery, Webhook, WebhookSpec, WebhookWithSecret
from shardtune.service.access.actions import Action
from shardtune.service.access.auth import requires
from shardtune.service.http.error_codes import problems
from shardtune.service.http.idempotent_requests import IdempotencyDep
from shardtune.service.process.context import ContextDep
from shardtune.service.webhooks import manage

router = APIRouter(prefix="/v1/webhooks", tags=["webhooks"])

READ = [requires(Action.READ_KEYS)]

_UNKNOWN = problems("unknown_webhook")
_UNKNOWN_OR_NO_KEY = problems("unknown_webhook", "no_secret_key")


@router.post(
    "",
    dependencies=[requires(Action.CREATE_WEBHOOK)],
    status_code=201,
    responses=problems("no_secret_key", "too_many_webhooks"),
)
def create_webhook(context: ContextDep, spec: WebhookSpec, once: IdempotencyDep) -> WebhookWithSecret:
    """Create a webhook that gets events by signed POSTs (standardwebhooks.com). Only this response contains the
    webhook's secret.
    """
    return manage.create(context, spec, once)


@router.get("", dependencies=READ)
def list_webhooks(context: ContextDep) -> list[Webhook]:
    """List all webhooks of the key's projects, oldest first; there are at most a hundred per project, so there are no
    pages.
    """
    return manage.list_webhooks(context)


@router.get("/{webhook_id}", dependencies=READ, responses=_UNKNOWN)
def read_webhook(context: ContextDep, webhook_id: str) -> Webhook:
    """Read one webhook without its secret."""
    return manage.read(context, webhook_id)


@router.delete("/{webhook_id}", dependencies=[requires(Action.DELETE_WEBHOOK)], status_code=204, responses=_UNKNOWN)
def delete_webhook(context: ContextDep, webhook_id: str) -> None:
    """Delete a webhook and its deliveries."""
    manage.delete(context, webhook_id)


@router.post("/{webhook_id}:enable", dependencies=[requires(Action.ENABLE_WEBHOOK)], responses=_UNKNOWN)
def enable_webhook(context: ContextDep, webhook_id: str, once: IdempotencyDep) -> Webhook:
    """Enable a webhook again after the service stopped delivering; messages that failed meanwhile are not repeated."""
    return manage.enable(context, webhook_id, once)


@router.post("/{webhook_id}:disable", dependencies=[requires(Action.DISABLE_WEBHOOK)], responses=_UNKNOWN)
def disable_webhook(context: ContextDep, webhook_id: str, once: IdempotencyDep) -> Webhook:
    """Disable a webhook until it is enabled again; waiting messages are discarded."""
    return manage.disable(context, webhook_id, once)


@router.post("/{webhook_id}:rotate", dependencies=[requires(Action.ROTATE_WEBHOOK)], responses=_UNKNOWN_OR_NO_KEY)
def rotate_secret(context: ContextDep, webhook_id: str, once: IdempotencyDep) -> WebhookWithSecret:
    """Create a new secret for a webhook; messages are signed with the former secret as well for 24 hours."""
    return manage.rotate(context, webhook_id, once)


@router.post("/{webhook_id}:test", dependencies=[requires(Action.TEST_WEBHOOK)], responses=_UNKNOWN_OR_NO_KEY)
async def test_webhook(context: ContextDep, webhook_id: str, once: IdempotencyDep) -> Delivery:
    """Send a `webhook.test` message to a webhook now, and return the result."""
    return await manage.send_test(context, webhook_id, once)


@router.get("/{webhook_id}/deliveries", dependencies=READ, responses=_UNKNOWN)
def list_deliveries(
    context: ContextDep, webhook_id: str, limit: Annotated[int, Query(ge=1, le=500)] = 50
) -> list[Delivery]:
    """List a webhook's newest messages with the results of their deliveries."""
    return manage.read_deliveries(context, webhook_id, limit)
