"""Turns at something of which a process has few: who has many in hand waits for their own, and nobody else waits for them.

A place that gets free goes to the sender that has the fewest in hand; of equals to who has waited longest. Who had more
than half of the time lately, while others came too, has one place: threads share one interpreter, and each more that
computes makes everybody wait for it longer.
"""

import asyncio
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

_HALF_LIFE_S = 2.0
"""In which what somebody had counts half."""
_MOST_OF_ALL = 0.5
"""Share of the time from which on a sender has one place."""
_ALONE = 0.98
"""Share of the time from which on nobody else is there who could wait."""


class Turns:
    """Places of one process. Belongs to the event loop's thread."""

    def __init__(self, at_once: int, of_one_sender: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._free, self._most = at_once, of_one_sender
        self._in_hand: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        self._had = _Had(clock)

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
        self._had.count(self._in_hand)
        self._hand_out()
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self.release(sender)
            raise

    def release(self, sender: str) -> None:
        """The request is handled."""
        self._had.count(self._in_hand)
        self._free += 1
        self._in_hand[sender] -= 1
        if not self._in_hand[sender]:
            del self._in_hand[sender]
        self._hand_out()

    def _hand_out(self) -> None:
        while self._free and (ready := [one for one in self._waiting if self._in_hand[one] < self._most_of(one)]):
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

    def _most_of(self, sender: str) -> int:
        return 1 if _MOST_OF_ALL < self._had.share(sender) < _ALONE else self._most


class _Had:
    """Seconds of places that each sender had, of which the older count less."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._counted_s = clock, clock()
        self._had: dict[str, float] = {}
        self._of_all = 0.0
        self._weight = 1.0
        """Of a second now. Instead of what was had shrinking, what is added grows, so that it costs nothing per sender."""

    def count(self, in_hand: Counter[str]) -> None:
        """Add the time since it was last counted; call it before what is in hand changes."""
        now = self._clock()
        passed_s, self._counted_s = now - self._counted_s, now
        self._weight *= 2 ** min(passed_s / _HALF_LIFE_S, 64.0)
        for sender, places in in_hand.items():
            seconds = passed_s * places * self._weight
            self._had[sender] = self._had.get(sender, 0.0) + seconds
            self._of_all += seconds
        if self._weight > 1e9:
            self._forget()

    def share(self, sender: str) -> float:
        """Of the time that all had together, from 0 to 1."""
        return self._had.get(sender, 0.0) / self._of_all if self._of_all else 0.0

    def _forget(self) -> None:
        scaled = {sender: seconds / self._weight for sender, seconds in self._had.items()}
        # A millionth of a second is nothing that anybody waits for.
        self._had = {sender: seconds for sender, seconds in scaled.items() if seconds > 1e-6}
        self._of_all, self._weight = sum(self._had.values()), 1.0
