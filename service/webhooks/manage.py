"""Create, read, change and test webhooks."""

import json
import logging
import secrets as random_names

from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool

from shardtune.api_schemas.notifications.events import EventType
from shardtune.api_schemas.notifications.webhooks import (
    Delivery,
    DeliveryState,
    Webhook,
    WebhookSpec,
    WebhookWithSecret,
)
from shardtune.db.queries import studies, webhooks
from shardtune.db.tables.studies import DeliveryRow, WebhookRow
from shardtune.service.http.errors import Conflict, NotFound, invalid
from shardtune.service.http.idempotent_requests import ALWAYS, Once
from shardtune.service.process.context import Context
from shardtune.service.webhooks import addresses, secrets
from shardtune.service.webhooks.send import Message, reach_of, send

log = logging.getLogger(__name__)

_SHOWN_ONCE = "shown once; use :rotate for a new one"


def create(context: Context, spec: WebhookSpec, once: Once = ALWAYS) -> WebhookWithSecret:
    """Store a webhook; the answer is the only one with its secret.

    Raises:
        Invalid: the URL is not allowed, or the study does not exist.
        Conflict: there is no key to derive secrets from, or there are too many webhooks.
    """
    addresses.check_url(spec.url, context.settings.webhook_allow_private)
    key = secrets.master_key(context.settings)
    with once.write(context) as session:
        study = studies.get(session, spec.study_id) if spec.study_id is not None else None
        if spec.study_id is not None and (study is None or not context.principal.sees(study.project_id)):
            raise invalid("study_id", spec.study_id, f"study_id ({spec.study_id}) does not exist; GET /v1/studies")
        project_id, most = context.principal.project_id, context.settings.max_webhooks
        if webhooks.count(session, project_id) >= most:
            raise Conflict("too_many_webhooks", f"there are {most} webhooks of this project already; delete one first")
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
        return once.answer(session, _with_secret(row, key), 201, _hidden(row))


def everyone(context: Context) -> list[Webhook]:
    """All webhooks of the sender's project, oldest first; the operator's own, which are told of every project, are its
    own to see."""
    only = context.principal.project_id
    with context.db.read() as session:
        return [_view(row) for row in webhooks.everyone(session) if only in (None, row.project_id)]


def read(context: Context, webhook_id: str) -> Webhook:
    with context.db.read() as session:
        return _view(_get(context, session, webhook_id))


def delete(context: Context, webhook_id: str) -> None:
    """Forget a webhook and its deliveries."""
    with context.db.write() as session:
        session.delete(_hold(context, session, webhook_id))


def enable(context: Context, webhook_id: str, once: Once = ALWAYS) -> Webhook:
    """Deliver again; what failed meanwhile is not repeated."""
    with once.write(context) as session:
        row = _hold(context, session, webhook_id)
        row.is_enabled, row.disabled_reason = True, None
        return once.answer(session, _view(row))


def disable(context: Context, webhook_id: str, once: Once = ALWAYS) -> Webhook:
    """Tell it nothing more, and give up what waits for it, until it is enabled again."""
    with once.write(context) as session:
        row = _hold(context, session, webhook_id)
        if row.is_enabled:
            webhooks.disable(session, row.id, f"disabled by {context.principal.name}", context.now())
            session.refresh(row)
            log.info("webhook disabled", extra={"webhook": row.id, "by": context.principal.name})
        return once.answer(session, _view(row))


def rotate(context: Context, webhook_id: str, once: Once = ALWAYS) -> WebhookWithSecret:
    """A new secret; the former signs beside it for a day."""
    key = secrets.master_key(context.settings)
    with once.write(context) as session:
        row = _hold(context, session, webhook_id)
        row.secret_version += 1
        row.rotated_at = context.now()
        session.flush()
        return once.answer(session, _with_secret(row, key), 200, _hidden(row))


def read_deliveries(context: Context, webhook_id: str, limit: int) -> list[Delivery]:
    """The newest messages of a webhook and what became of them."""
    with context.db.read() as session:
        _get(context, session, webhook_id)
        return [_delivery(row) for row in webhooks.deliveries(session, webhook_id, limit)]


def delivery_list(context: Context, webhook_id: str, state: str, offset: int, limit: int) -> tuple[list[Delivery], int]:
    """Messages of a webhook in a state (empty: any), newest first from `offset` on, and how many there are."""
    with context.db.read() as session:
        _get(context, session, webhook_id)
        rows, total = webhooks.delivery_list(session, webhook_id, state, offset, limit)
        return [_delivery(row) for row in rows], total


async def test(context: Context, webhook_id: str, once: Once = ALWAYS) -> Delivery:
    """Send a `webhook.test` message now, once, also to a disabled webhook.

    A repetition under the same Idempotency-Key gets the message as it was before it was sent.
    """
    key = await run_in_threadpool(secrets.master_key, context.settings)
    message = await run_in_threadpool(_test_message, context, webhook_id, once)
    answer = await send(message, key, context.now(), reach_of(context))
    # One try is all a test gets, and its failure disables nothing.
    return await run_in_threadpool(_note_test, context, message, answer.status, answer.error)


def _test_message(context: Context, webhook_id: str, once: Once) -> Message:
    with once.write(context) as session:
        row = _hold(context, session, webhook_id)
        now = context.now()
        body = json.dumps({"type": "webhook.test", "timestamp": now.isoformat(), "data": {"webhook_id": row.id}})
        sent = webhooks.add_delivery(session, row, "webhook.test", body, now)
        sent.tries, sent.next_at = 1, None
        session.flush()
        once.answer(session, _delivery(sent))
        return Message(sent.id, row.id, row.project_id, row.url, secrets.valid_versions(row, now), body, 1)


def _note_test(context: Context, message: Message, status: int | None, error: str | None) -> Delivery:
    with context.db.write() as session:
        row = webhooks.delivery(session, message.delivery_id)
        if row is None:
            raise NotFound("unknown_webhook", f"webhook {message.webhook_id} was deleted meanwhile")
        row.status, row.error, row.finished_at = status, error, context.now()
        row.state = DeliveryState.FAILED if error else DeliveryState.DELIVERED
        return _delivery(row)


def _get(context: Context, session: Session, webhook_id: str) -> WebhookRow:
    return _known(context, webhooks.get(session, webhook_id), webhook_id)


def _hold(context: Context, session: Session, webhook_id: str) -> WebhookRow:
    """To change it: who deletes it meanwhile waits, or has done so already."""
    return _known(context, webhooks.lock(session, webhook_id), webhook_id)


def _known(context: Context, row: WebhookRow | None, webhook_id: str) -> WebhookRow:
    only = context.principal.project_id
    if row is None or only not in (None, row.project_id):
        raise NotFound("unknown_webhook", f"webhook {webhook_id} does not exist; GET /v1/webhooks lists those that do")
    return row


def _view(row: WebhookRow) -> Webhook:
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
    return WebhookWithSecret(**dict(_view(row)), secret=secrets.secret_of(key, row.id, row.secret_version))


def _hidden(row: WebhookRow) -> WebhookWithSecret:
    """What a repetition gets: secrets are stored nowhere, so it must rotate to see one."""
    return WebhookWithSecret(**dict(_view(row)), secret=_SHOWN_ONCE)


def _delivery(row: DeliveryRow) -> Delivery:
    return Delivery(
        delivery_id=row.id,
        type=row.type,
        state=row.state,
        tries=row.tries,
        status=row.status,
        error=row.error,
        created_at=row.created_at,
        next_at=row.next_at,
        finished_at=row.finished_at,
    )
