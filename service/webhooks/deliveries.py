"""Deliver the webhook messages that db.outbox stored, at least once each: claim, send outside any transaction, record
the response.

Any replica may claim a message. A claim expires after some time, so another replica sends the messages of a killed one.
Each webhook and each project has a limited number of messages being sent at a time, so that a receiver that never
answers delays no messages to other receivers.
"""

import asyncio
import logging
import random
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from starlette.concurrency import run_in_threadpool

from shardtune.api_schemas.notifications.webhooks import DeliveryState
from shardtune.db.queries import webhooks
from shardtune.db.tables.webhooks import DeliveryRow
from shardtune.service.process.background import run_every
from shardtune.service.process.context import Context
from shardtune.service.webhooks import secrets
from shardtune.service.webhooks.send import TEST, Message, ReceiverAnswer, delivery_rules, send

log = logging.getLogger(__name__)

RETRY_S = (5, 5 * 60, 30 * 60, 2 * 3600, 5 * 3600, 10 * 3600, 14 * 3600, 20 * 3600, 24 * 3600)
"""Pauses in seconds between the attempts to deliver a message, as recommended by standardwebhooks.com: one after each
failed attempt. If the attempt after the last pause fails, the message is given up.
"""
CLAIM = timedelta(seconds=60)
"""Time for which a service replica reserves a message that it is sending, so that no other replica sends it, too.
Sending may not take longer.
"""
_MAX_PER_WEBHOOK = 4
"""Maximum number of messages that are being sent to one webhook at the same time. If the webhook's last message
failed, only one is sent at a time.
"""
_MAX_PER_PROJECT = 32
_GONE = 410


@dataclass
class DeliveriesInFlight:
    """Counts of the webhook messages that this process is sending now, from which follows how many more it may send.
    Used in the event loop's thread only.
    """

    by_webhook: Counter[str] = field(default_factory=Counter)
    by_project: Counter[str | None] = field(default_factory=Counter)
    failing: set[str] = field(default_factory=set)
    """Ids of webhooks whose last message failed."""

    def copy(self) -> "DeliveriesInFlight":
        """Copy of the counts of messages being sent, for another thread that plans further deliveries."""
        return DeliveriesInFlight(self.by_webhook.copy(), self.by_project.copy(), self.failing.copy())

    def capacity(self, webhook_id: str, project_id: str | None) -> int:
        """Number of further messages that may be sent to a webhook now."""
        limit = 1 if webhook_id in self.failing else _MAX_PER_WEBHOOK
        return max(0, min(limit - self.by_webhook[webhook_id], _MAX_PER_PROJECT - self.by_project[project_id]))

    def begin(self, message: Message) -> None:
        """Count one more message that is being sent to a webhook."""
        self.by_webhook[message.webhook_id] += 1
        self.by_project[message.project_id] += 1

    def end(self, message: Message, is_taken: bool) -> None:
        """Count one message less that is being sent, and record whether the receiver accepted the message."""
        self.by_webhook -= Counter([message.webhook_id])
        self.by_project -= Counter([message.project_id])
        (self.failing.discard if is_taken else self.failing.add)(message.webhook_id)


class Courier:
    """Sender of due webhook messages, many at once."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._in_flight = DeliveriesInFlight()
        self._tasks: set[asyncio.Task[None]] = set()

    async def start_due(self) -> int:
        """Begin to send webhook messages that are due, as many as may be sent at a time; returns the number begun."""
        messages = await run_in_threadpool(claim_due, self._context, self._in_flight.copy())
        key = await run_in_threadpool(secrets.master_key, self._context.settings) if messages else b""
        for message in messages:
            self._in_flight.begin(message)
            self._tasks.add(task := asyncio.create_task(self._deliver(message, key)))
            task.add_done_callback(self._tasks.discard)
        return len(messages)

    async def deliver(self) -> None:
        """Send webhook messages until none is due or being sent; checks for due messages at intervals and whenever one
        has ended.
        """
        while await self.start_due() or self._tasks:
            pause_s = self._context.settings.poll_s
            await asyncio.wait(self._tasks, timeout=pause_s, return_when=asyncio.FIRST_COMPLETED)

    async def stop(self) -> None:
        """Cancel the messages that are being sent; they are claimed and sent again later, possibly by another
        replica.
        """
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _deliver(self, message: Message, key: bytes) -> None:
        is_taken = False
        try:
            answer = await send(message, key, self._context.now(), delivery_rules(self._context))
            is_taken = answer.is_success
            await run_in_threadpool(record_answer, self._context, message, answer)
        except Exception:  # a border: a message without a recorded answer is sent again; others go on.
            log.exception("a webhook's message broke", extra={"delivery": message.delivery_id})
        finally:
            self._in_flight.end(message, is_taken)


async def keep_delivering(context: Context) -> None:
    """Deliver due webhook messages at intervals until cancelled."""
    courier = Courier(context)
    try:
        await run_every(context.settings.poll_s * 2, delivering_to_webhooks=courier.deliver)
    finally:
        await courier.stop()


def claim_due(context: Context, planned: DeliveriesInFlight) -> list[Message]:
    """Claim due webhook messages for a minute: as many as this process may send in addition to those it is sending
    already.
    """
    now = context.now()
    with context.db.read() as session:
        due_webhooks = [
            webhook_and_project
            for webhook_and_project in webhooks.webhooks_with_due_messages(session, now)
            if planned.capacity(*webhook_and_project)
        ]
    if not due_webhooks:
        return []
    claimed = []
    with context.db.write() as session:
        for webhook_id, project_id in due_webhooks:
            room = planned.capacity(webhook_id, project_id)
            for row in webhooks.due_messages(session, webhook_id, now, room) if room else ():
                if row.type == TEST:
                    _give_up_test(row, now)
                    continue
                # Counted before sending: a try whose process dies counts, so that no message is tried forever.
                row.tries += 1
                row.next_at = now + CLAIM
                versions = secrets.valid_versions(row.webhook, now)
                message = Message(row.id, webhook_id, project_id, row.webhook.url, versions, row.body, row.tries)
                planned.begin(message)
                claimed.append(message)
    return claimed


def _give_up_test(row: DeliveryRow, now: datetime) -> None:
    """End a test message that became due: the process that was sending it has died, and tests are not repeated."""
    row.state, row.finished_at, row.next_at = DeliveryState.FAILED, now, None
    row.error = "the service ended before it knew the answer; send another test"


def record_answer(context: Context, message: Message, answer: ReceiverAnswer) -> None:
    """Record the receiver's response to an attempt to deliver a message. Nothing changes if another attempt has taken
    over the message meanwhile.
    """
    now = context.now()
    with context.db.write() as session:
        webhook = webhooks.lock(session, message.webhook_id)
        row = webhooks.delivery(session, message.delivery_id) if webhook is not None else None
        if row is None or row.state != DeliveryState.WAITING or row.tries != message.tries:
            return
        row.status, row.error = answer.status, answer.error
        extra = {"webhook": message.webhook_id, "delivery": row.id, "tries": row.tries, "status": answer.status}
        if answer.is_success:
            row.state, row.finished_at, row.next_at = DeliveryState.DELIVERED, now, None
            log.info("webhook delivered", extra=extra)
        elif answer.status == _GONE or row.tries > len(RETRY_S):
            row.state, row.finished_at, row.next_at = DeliveryState.FAILED, now, None
            log.warning("webhook message given up: %s", answer.error, extra=extra)
            reason = "the receiver answered 410 (gone)" if answer.status == _GONE else f"{row.tries} tries failed"
            # A single rejected message must not disable a webhook that took others since.
            if answer.status == _GONE or not webhooks.has_delivered_since(session, row.webhook_id, row.created_at):
                webhooks.disable(session, row.webhook_id, f"{reason}, last: {answer.error}", now)
                log.warning("webhook disabled: %s", reason, extra=extra)
        else:
            row.next_at = _next_try_at(now, row.tries)
            log.warning("webhook not delivered: %s", answer.error, extra=extra)


def _next_try_at(now: datetime, tries: int) -> datetime:
    # Spread, so that a receiver that was down is not met by everything at once.
    return now + timedelta(seconds=RETRY_S[tries - 1] * random.uniform(1.0, 1.2))
