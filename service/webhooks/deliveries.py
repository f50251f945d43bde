"""Deliver what db.outbox wrote down: claim, send outside any transaction, note the answer. At least once.

Any replica may claim; a claim ends by itself, so a killed replica's messages are sent by another.
"""

import asyncio
import logging
import random
from datetime import datetime, timedelta

from starlette.concurrency import run_in_threadpool

from shardtune.api_schemas.webhooks import DeliveryState
from shardtune.db.queries import webhooks
from shardtune.service.process.background import run_every
from shardtune.service.process.context import Context
from shardtune.service.webhooks import secrets
from shardtune.service.webhooks.sending import Message, ReceiverAnswer, send

log = logging.getLogger(__name__)

RETRY_S = (5, 5 * 60, 30 * 60, 2 * 3600, 5 * 3600, 10 * 3600, 14 * 3600, 20 * 3600, 24 * 3600)
"""Pauses after each failed try, as standardwebhooks.com recommends; then the webhook is disabled."""
_CLAIM = timedelta(seconds=60)
"""Longer than a send may take."""
_BATCH = 16
_GONE = 410


async def keep_delivering(context: Context) -> None:
    """Deliver what is due until cancelled."""

    async def step() -> None:
        while await deliver_due(context) == _BATCH:
            pass

    await run_every(context.settings.poll_s * 2, delivering_to_webhooks=step)


async def deliver_due(context: Context) -> int:
    """Send one batch of due messages; returns how many."""
    messages = await run_in_threadpool(claim_due, context)
    if messages:
        key = await run_in_threadpool(secrets.master_key, context.settings)
        await asyncio.gather(*(_deliver(context, message, key) for message in messages))
    return len(messages)


async def _deliver(context: Context, message: Message, key: bytes) -> None:
    answer = await send(message, key, context.now(), context.settings.webhook_allow_private)
    await run_in_threadpool(note, context, message, answer)


def claim_due(context: Context) -> list[Message]:
    """Messages that are this process's to send for a minute."""
    now = context.now()
    with context.db.read() as session:
        if not webhooks.is_any_due(session, now):
            return []
    with context.db.write() as session:
        rows = webhooks.due(session, now, _BATCH)
        for row in rows:
            row.tries += 1
            row.next_at = now + _CLAIM
        return [
            Message(
                delivery_id=row.id,
                webhook_id=row.webhook_id,
                url=row.webhook.url,
                secret_versions=secrets.valid_versions(row.webhook, now),
                body=row.body,
                tries=row.tries,
            )
            for row in rows
        ]


def note(context: Context, message: Message, answer: ReceiverAnswer) -> None:
    """Store what became of a try; a try that was overtaken by another changes nothing."""
    now = context.now()
    with context.db.write() as session:
        row = webhooks.delivery(session, message.delivery_id)
        if row is None or row.state != DeliveryState.WAITING or row.tries != message.tries:
            return
        row.status, row.error = answer.status, answer.error
        extra = {"webhook": message.webhook_id, "delivery": row.id, "tries": row.tries, "status": answer.status}
        if answer.is_success:
            row.state, row.finished_at, row.next_at = DeliveryState.DELIVERED, now, None
            log.info("webhook delivered", extra=extra)
        elif answer.status == _GONE or row.tries > len(RETRY_S):
            row.state, row.finished_at, row.next_at = DeliveryState.FAILED, now, None
            why = "the receiver answered 410 (gone)" if answer.status == _GONE else f"{row.tries} tries failed"
            webhooks.disable(session, row.webhook_id, f"{why}, last: {answer.error}", now)
            log.warning("webhook disabled: %s", why, extra=extra)
        else:
            row.next_at = _next(now, row.tries)
            log.warning("webhook not delivered: %s", answer.error, extra=extra)


def _next(now: datetime, tries: int) -> datetime:
    # Spread, so that a receiver that was down is not met by everything at once.
    return now + timedelta(seconds=RETRY_S[tries - 1] * random.uniform(1.0, 1.2))
