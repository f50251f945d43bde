"""Create, read, change and test webhooks."""

import json
import logging
import secrets as random_names

from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool

from shardtune.api_schemas.access.keys import DEFAULT_PROJECT
from shardtune.api_schemas.notifications.events import EventType
from shardtune.api_schemas.notifications.webhooks import (
    Delivery,
    DeliveryState,
    Webhook,
    WebhookSpec,
    WebhookWithSecret,
)
from shardtune.db.queries import keys, studies, webhooks
from shardtune.db.tables.webhooks import DeliveryRow, WebhookRow
from shardtune.service.http.errors import Conflict, NotFound, invalid
from shardtune.service.http.idempotent_requests import NO_KEY, IdempotencyKey
from shardtune.service.process.context import Context
from shardtune.service.webhooks import addresses, deliveries, secrets
from shardtune.service.webhooks.send import TEST, Message, delivery_rules, send

log = logging.getLogger(__name__)

_SHOWN_ONCE = "shown once; use :rotate for a new one"


def create(context: Context, spec: WebhookSpec, idempotency: IdempotencyKey = NO_KEY) -> WebhookWithSecret:
    """Store a new webhook. Only this response contains the webhook's secret.

    Raises:
        Invalid: the URL is not allowed, or the study does not exist.
        Conflict: no key is set to derive secrets from, or the project has the maximum number of webhooks.
    """
    addresses.check_url(spec.url, context.settings.webhook_allow_private)
    # Read before the transaction: beside SQLite the key may be a file that is written on first use.
    key = secrets.master_key(context.settings)
    with idempotency.write(context) as session:
        study = studies.get(session, spec.study_id) if spec.study_id is not None else None
        if spec.study_id is not None and (study is None or not context.principal.sees(study.project_id)):
            raise invalid("study_id", spec.study_id, f"study_id ({spec.study_id}) does not exist; GET /v1/studies")
        project_id, limit = context.principal.project_id, context.settings.max_webhooks
        # The lock makes count and insert one step for two simultaneous requests.
        keys.lock_project(session, project_id or DEFAULT_PROJECT)
        if webhooks.count(session, project_id) >= limit:
            raise Conflict("too_many_webhooks", f"there are {limit} webhooks of this project already; delete one first")
        row = WebhookRow(
            id=f"webhook-{random_names.token_hex(6)}",
            url=spec.url,
            events=tuple(map(EventType, spec.events)),
            study_id=spec.study_id,
            project_id=project_id,
            is_enabled=True,
            secret_version=1,
            created_at=context.now(),
        )
        session.add(row)
        session.flush()
        log.info("webhook created", extra={"webhook": row.id})
        return idempotency.answer(session, _with_secret(row, key), 201, _without_secret(row))


def list_webhooks(context: Context) -> list[Webhook]:
    """All webhooks of the sender's project, oldest first; a key for all projects gets the webhooks of every project."""
    project_id = context.principal.project_id
    with context.db.read() as session:
        return [_webhook_view(row) for row in webhooks.all_webhooks(session) if project_id in (None, row.project_id)]


def read(context: Context, webhook_id: str) -> Webhook:
    with context.db.read() as session:
        return _webhook_view(_get(context, session, webhook_id))


def delete(context: Context, webhook_id: str) -> None:
    """Delete a webhook and its deliveries."""
    with context.db.write() as session:
        session.delete(_lock(context, session, webhook_id))


def enable(context: Context, webhook_id: str, idempotency: IdempotencyKey = NO_KEY) -> Webhook:
    """Resume deliveries to a webhook; messages that failed meanwhile are not repeated."""
    with idempotency.write(context) as session:
        row = _lock(context, session, webhook_id)
        row.is_enabled, row.disabled_reason = True, None
        return idempotency.answer(session, _webhook_view(row))


def disable(context: Context, webhook_id: str, idempotency: IdempotencyKey = NO_KEY) -> Webhook:
    """Stop deliveries to a webhook and discard waiting messages, until the webhook is enabled again."""
    with idempotency.write(context) as session:
        row = _lock(context, session, webhook_id)
        if row.is_enabled:
            webhooks.disable(session, row.id, f"disabled by {context.principal.name}", context.now())
            # The query disabled the row in the database; its object still has the old values.
            session.refresh(row)
            log.info("webhook disabled", extra={"webhook": row.id, "by": context.principal.name})
        return idempotency.answer(session, _webhook_view(row))


def rotate(context: Context, webhook_id: str, idempotency: IdempotencyKey = NO_KEY) -> WebhookWithSecret:
    """Create a new secret for a webhook; for one day, messages are signed with the former secret as well."""
    key = secrets.master_key(context.settings)
    with idempotency.write(context) as session:
        row = _lock(context, session, webhook_id)
        row.secret_version += 1
        row.rotated_at = context.now()
        session.flush()
        return idempotency.answer(session, _with_secret(row, key), 200, _without_secret(row))


def read_deliveries(context: Context, webhook_id: str, limit: int) -> list[Delivery]:
    """Newest messages of a webhook, with the results of their deliveries."""
    with context.db.read() as session:
        _get(context, session, webhook_id)
        return [_delivery_view(row) for row in webhooks.deliveries(session, webhook_id, limit)]


def delivery_list(context: Context, webhook_id: str, state: str, offset: int, limit: int) -> tuple[list[Delivery], int]:
    """Messages of a webhook in a given state (an empty state matches all), newest first and beginning at `offset`,
    and the total number of such messages.
    """
    with context.db.read() as session:
        _get(context, session, webhook_id)
        rows, total = webhooks.delivery_list(session, webhook_id, state, offset, limit)
        return [_delivery_view(row) for row in rows], total


async def send_test(context: Context, webhook_id: str, idempotency: IdempotencyKey = NO_KEY) -> Delivery:
    """Send a `webhook.test` message to a webhook now and only once, even if the webhook is disabled.

    A repetition under the same Idempotency-Key returns the message as it was before sending.
    """
    key = await run_in_threadpool(secrets.master_key, context.settings)
    message = await run_in_threadpool(_test_message, context, webhook_id, idempotency)
    answer = await send(message, key, context.now(), delivery_rules(context))
    # A test gets a single try, and its failure disables nothing.
    return await run_in_threadpool(_note_test, context, message, answer.status, answer.error)


def _test_message(context: Context, webhook_id: str, idempotency: IdempotencyKey) -> Message:
    with idempotency.write(context) as session:
        row = _lock(context, session, webhook_id)
        now = context.now()
        body = json.dumps({"type": TEST, "timestamp": now.isoformat(), "data": {"webhook_id": row.id}})
        # Due once this process must have sent it: then the delivery loop ends it as failed, and sends nothing.
        delivery_row = webhooks.add_delivery(session, row, TEST, body, now)
        delivery_row.tries, delivery_row.next_at = 1, now + deliveries.CLAIM
        session.flush()
        idempotency.answer(session, _delivery_view(delivery_row))
        return Message(delivery_row.id, row.id, row.project_id, row.url, secrets.valid_versions(row, now), body, 1)


def _note_test(context: Context, message: Message, status: int | None, error: str | None) -> Delivery:
    with context.db.write() as session:
        row = webhooks.delivery(session, message.delivery_id)
        if row is None:
            raise NotFound("unknown_webhook", f"webhook {message.webhook_id} was deleted meanwhile")
        row.status, row.error, row.finished_at, row.next_at = status, error, context.now(), None
        row.state = DeliveryState.FAILED if error else DeliveryState.DELIVERED
        return _delivery_view(row)


def _get(context: Context, session: Session, webhook_id: str) -> WebhookRow:
    return _check_visible(context, webhooks.get(session, webhook_id), webhook_id)


def _lock(context: Context, session: Session, webhook_id: str) -> WebhookRow:
    """Lock the row of a webhook in order to change it."""
    # A webhook deleted in mid-request fails nothing: the deletion waits for this lock, or has happened before it.
    return _check_visible(context, webhooks.lock(session, webhook_id), webhook_id)


def _check_visible(context: Context, row: WebhookRow | None, webhook_id: str) -> WebhookRow:
    project_id = context.principal.project_id
    if row is None or project_id not in (None, row.project_id):
        message = f"webhook {webhook_id} does not exist"
        raise NotFound("unknown_webhook", message, api_remedy="GET /v1/webhooks lists those that do")
    return row


def _webhook_view(row: WebhookRow) -> Webhook:
    return Webhook(
        webhook_id=row.id,
        url=row.url,
        events=row.events,
        study_id=row.study_id,
        is_enabled=row.is_enabled,
        disabled_reason=row.disabled_reason,
        created_at=row.created_at,
    )


def _with_secret(row: WebhookRow, key: bytes) -> WebhookWithSecret:
    return WebhookWithSecret(**dict(_webhook_view(row)), secret=secrets.secret_of(key, row.id, row.secret_version))


def _without_secret(row: WebhookRow) -> WebhookWithSecret:
    """Response for a request that was sent again, without the webhook's secret, which only the first response
    contains.
    """
    # Secrets are stored nowhere, so a sender that lost the response must rotate.
    return WebhookWithSecret(**dict(_webhook_view(row)), secret=_SHOWN_ONCE)


def _delivery_view(row: DeliveryRow) -> Delivery:
    return Delivery(
        delivery_id=row.id,
        type=row.type,
        state=row.state,
        tries=row.tries,
        status=row.status,
        error=row.error,
        created_at=row.created_at,
        # A test has no next try.
        next_at=None if row.type == TEST else row.next_at,
        finished_at=row.finished_at,
    )
