"""Turns at something of which a process has few: who has many in hand waits for their own, and nobody else waits for them.

A place that gets free goes to the sender that has the fewest in hand; of equals to who has waited longest.
"""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Turns:
    """Places of one process. Belongs to the event loop's thread."""

    def __init__(self, at_once: int, of_one_sender: int) -> None:
        self._free, self._most = at_once, of_one_sender
        self._in_hand: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    @asynccontextmanager
    async def turn(self, sender: str) -> AsyncIterator[None]:
        """A place for as long as the block runs."""
        await self.take(sender)
        try:
            yield
        finally:
            self.release(sender)

    async def take(self, sender: str) -> None:
        """Wait for a place; give it back by `release`."""
        place = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(sender, deque()).append(place)
        self._hand_out()
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self.release(sender)
            raise

    def release(self, sender: str) -> None:
        """The request is handled."""
        self._free += 1
        self._in_hand[sender] -= 1
        if not self._in_hand[sender]:
            del self._in_hand[sender]
        self._hand_out()

    def _hand_out(self) -> None:
        while self._free and (ready := [one for one in self._waiting if self._in_hand[one] < self._most]):
            # The first of equals is who has waited longest: a sender that is served goes to the end.
            sender = min(ready, key=self._in_hand.__getitem__)
            queue = self._waiting.pop(sender)
            place = queue.popleft()
            if queue:
                self._waiting[sender] = queue
            if not place.cancelled():
                self._free -= 1
                self._in_hand[sender] += 1
                place.set_result(None)
