"""Deliver webhook messages when a test says so, by the courier that the service's loop runs."""

import asyncio

from shardtune.service.process.context import Context
from shardtune.service.webhooks.deliveries import Courier


class _CountingCourier(Courier):
    """Courier that counts the messages that it began to send."""

    begun = 0

    async def start_due(self) -> int:
        """Begin to send due messages, and count them."""
        count = await super().start_due()
        self.begun += count
        return count


def deliver(context: Context) -> int:
    """Send webhook messages until none is due, as one turn of the service's loop does; returns the number of attempts."""

    async def deliver_once() -> int:
        # Made within the loop, as the service makes its own.
        courier = _CountingCourier(context)
        await courier.deliver()
        return courier.begun

    return asyncio.run(deliver_once())
