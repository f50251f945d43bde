"""Deliver what db.outbox wrote down: claim, send outside any transaction, note the answer. At least once.

Any replica may claim; a claim ends by itself, so a killed replica's messages are sent by another. Each receiver has a
few messages under way and each project some dozens, so that one which never answers delays nobody else's.
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
from shardtune.service.process.background import run_every
from shardtune.service.process.context import Context
from shardtune.service.webhooks import secrets
from shardtune.service.webhooks.send import Message, ReceiverAnswer, reach_of, send

log = logging.getLogger(__name__)

RETRY_S = (5, 5 * 60, 30 * 60, 2 * 3600, 5 * 3600, 10 * 3600, 14 * 3600, 20 * 3600, 24 * 3600)
"""Pauses after each failed try, as standardwebhooks.com recommends; then the message is given up."""
_CLAIM = timedelta(seconds=60)
"""Longer than a send may take."""
_OF_WEBHOOK = 4
"""Messages under way to one webhook at once; one, where the last was not taken."""
_OF_PROJECT = 32
_GONE = 410


@dataclass
class UnderWay:
    """Messages of this process that are being sent, and the room there is for more. Belongs to the event loop's thread."""

    of_webhook: Counter[str] = field(default_factory=Counter)
    of_project: Counter[str | None] = field(default_factory=Counter)
    failing: set[str] = field(default_factory=set)
    """Webhooks whose last message was not taken."""

    def copy(self) -> "UnderWay":
        """For another thread to plan with."""
        return UnderWay(self.of_webhook.copy(), self.of_project.copy(), self.failing.copy())

    def room(self, webhook_id: str, project_id: str | None) -> int:
        """How many more there may be."""
        most = 1 if webhook_id in self.failing else _OF_WEBHOOK
        return max(0, min(most - self.of_webhook[webhook_id], _OF_PROJECT - self.of_project[project_id]))

    def begin(self, message: Message) -> None:
        """One more."""
        self.of_webhook[message.webhook_id] += 1
        self.of_project[message.project_id] += 1

    def end(self, message: Message, is_taken: bool) -> None:
        """One less."""
        self.of_webhook -= Counter([message.webhook_id])
        self.of_project -= Counter([message.project_id])
        (self.failing.discard if is_taken else self.failing.add)(message.webhook_id)


class Courier:
    """Sends what is due, many messages at once."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._under_way = UnderWay()
        self._tasks: set[asyncio.Task[None]] = set()

    async def start_due(self) -> int:
        """Begin to send what is due and has room; returns how many messages."""
        messages = await run_in_threadpool(claim_due, self._context, self._under_way.copy())
        key = await run_in_threadpool(secrets.master_key, self._context.settings) if messages else b""
        for message in messages:
            self._under_way.begin(message)
            self._tasks.add(task := asyncio.create_task(self._deliver(message, key)))
            task.add_done_callback(self._tasks.discard)
        return len(messages)

    async def deliver(self) -> None:
        """Send until nothing is due or under way, looking for more whenever a message has ended, and in between."""
        while await self.start_due() or self._tasks:
            pause_s = self._context.settings.poll_s
            await asyncio.wait(self._tasks, timeout=pause_s, return_when=asyncio.FIRST_COMPLETED)

    async def finish(self) -> None:
        """Wait for what is under way."""
        await asyncio.gather(*self._tasks)

    async def stop(self) -> None:
        """Leave what is under way to whoever claims it next."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _deliver(self, message: Message, key: bytes) -> None:
        is_taken = False
        try:
            answer = await send(message, key, self._context.now(), reach_of(self._context))
            is_taken = answer.is_success
            await run_in_threadpool(note, self._context, message, answer)
        except Exception:  # a border: what is not noted is sent again, and the others are none of its business
            log.exception("a webhook's message broke", extra={"delivery": message.delivery_id})
        finally:
            self._under_way.end(message, is_taken)


async def keep_delivering(context: Context) -> None:
    """Deliver what is due until cancelled."""
    courier = Courier(context)
    try:
        await run_every(context.settings.poll_s * 2, delivering_to_webhooks=courier.deliver)
    finally:
        await courier.stop()


async def deliver_due(context: Context) -> int:
    """Send what is due and has room, and wait for it; returns how many messages."""
    courier = Courier(context)
    count = await courier.start_due()
    await courier.finish()
    return count


def claim_due(context: Context, planned: UnderWay) -> list[Message]:
    """Messages that are this process's to send for a minute, as far as there is room beside what is under way."""
    now = context.now()
    with context.db.read() as session:
        found = [one for one in webhooks.with_due(session, now) if planned.room(*one)]
    if not found:
        return []
    claimed = []
    with context.db.write() as session:
        for webhook_id, project_id in found:
            room = planned.room(webhook_id, project_id)
            for row in webhooks.due(session, webhook_id, now, room) if room else ():
                row.tries += 1
                row.next_at = now + _CLAIM
                versions = secrets.valid_versions(row.webhook, now)
                message = Message(row.id, webhook_id, project_id, row.webhook.url, versions, row.body, row.tries)
                planned.begin(message)
                claimed.append(message)
    return claimed


def note(context: Context, message: Message, answer: ReceiverAnswer) -> None:
    """Store what became of a try; a try that was overtaken by another changes nothing."""
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
            why = "the receiver answered 410 (gone)" if answer.status == _GONE else f"{row.tries} tries failed"
            # One message that its receiver will not have says nothing of the others.
            if answer.status == _GONE or not webhooks.has_delivered_since(session, row.webhook_id, row.created_at):
                webhooks.disable(session, row.webhook_id, f"{why}, last: {answer.error}", now)
                log.warning("webhook disabled: %s", why, extra=extra)
        else:
            row.next_at = _next(now, row.tries)
            log.warning("webhook not delivered: %s", answer.error, extra=extra)


def _next(now: datetime, tries: int) -> datetime:
    # Spread, so that a receiver that was down is not met by everything at once.
    return now + timedelta(seconds=RETRY_S[tries - 1] * random.uniform(1.0, 1.2))
