"""Fair semaphore: grants free slots to the sender with the fewest slots in use, so that one busy project cannot starve
others.

Among equal senders the one that has waited longest is next. A sender that used more than half of the recent time while
other senders had requests, too, is limited to one slot.
"""

import asyncio
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

_HALF_LIFE_S = 2.0
"""Seconds after which the time for which a sender used slots counts only half in the fair queue."""
# Threads share one interpreter, so each further thread of a busy sender makes all others wait longer for it.
_BUSY_FRACTION = 0.5
"""Fraction of the slot time that all senders used recently. A sender that used more than this fraction counts as
busy, and is limited to one slot.
"""
# A sender that is alone delays nobody, and may use all its slots.
_ALONE_FRACTION = 0.98
"""Fraction of the slot time that all senders used recently. A sender that used more than this fraction counts as the
only active one, and is not limited.
"""


class FairQueue:
    """Fair queue that gives the slots of one process to the senders of requests. Used in the event loop's thread
    only.
    """

    def __init__(self, at_once: int, of_one_sender: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._free, self._max_per_sender = at_once, of_one_sender
        self._in_use: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        self._usage = DecayedUsage(clock)

    @asynccontextmanager
    async def slot(self, sender: str) -> AsyncIterator[None]:
        """Context manager that holds a slot of the fair queue for a sender, as long as the `with` block runs."""
        await self.take(sender)
        try:
            yield
        finally:
            self.release(sender)

    async def take(self, sender: str) -> None:
        """Wait until the sender gets a slot of the fair queue; the caller frees the slot with `release`."""
        slot = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(sender, deque()).append(slot)
        self._usage.count(self._in_use)
        self._grant_slots()
        try:
            await slot
        except asyncio.CancelledError:
            if slot.done() and not slot.cancelled():  # The slot was granted just before the cancellation arrived.
                self.release(sender)
            raise

    def release(self, sender: str) -> None:
        """Free one of the sender's slots in the fair queue."""
        self._usage.count(self._in_use)
        self._free += 1
        self._in_use[sender] -= 1
        if not self._in_use[sender]:
            del self._in_use[sender]
        self._grant_slots()

    def _grant_slots(self) -> None:
        while self._free and (
            eligible := [
                waiting_sender
                for waiting_sender in self._waiting
                if self._in_use[waiting_sender] < self._max_slots(waiting_sender)
            ]
        ):
            # `min` takes the first of equals, which has waited longest: a sender that gets a slot moves to the end.
            sender = min(eligible, key=self._in_use.__getitem__)
            sender_queue = self._waiting.pop(sender)
            slot = sender_queue.popleft()
            if sender_queue:
                self._waiting[sender] = sender_queue
            if not slot.cancelled():
                self._free -= 1
                self._in_use[sender] += 1
                slot.set_result(None)

    def _max_slots(self, sender: str) -> int:
        return 1 if _BUSY_FRACTION < self._usage.fraction(sender) < _ALONE_FRACTION else self._max_per_sender


class DecayedUsage:
    """Seconds for which each sender occupied slots of the fair queue; the longer ago a second is, the less it counts
    (exponential decay).
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._counted_s = clock, clock()
        self._usage: dict[str, float] = {}
        self._total = 0.0
        # Growing weights cost nothing per sender; all sums are scaled back only when the weight becomes large.
        self._weight = 1.0
        """Weight with which a second of slot use is added now. It grows with time, which has the same effect as if
        older seconds counted less and less.
        """

    def count(self, in_use: Counter[str]) -> None:
        """Add the slot time since the last call to each sender's usage. Must be called before the slots in use
        change.
        """
        now = self._clock()
        passed_s, self._counted_s = now - self._counted_s, now
        # Capped: after a long pause the power would overflow, and all earlier use is negligible anyway.
        self._weight *= 2 ** min(passed_s / _HALF_LIFE_S, 64.0)
        for sender, slots in in_use.items():
            seconds = passed_s * slots * self._weight
            self._usage[sender] = self._usage.get(sender, 0.0) + seconds
            self._total += seconds
        if self._weight > 1e9:
            self._rescale()

    def fraction(self, sender: str) -> float:
        """Slot time that this sender used recently, divided by the slot time that all senders used (from 0 to 1)."""
        return self._usage.get(sender, 0.0) / self._total if self._total else 0.0

    def _rescale(self) -> None:
        scaled = {sender: seconds / self._weight for sender, seconds in self._usage.items()}
        # A millionth of a second delays nobody; dropping it bounds the number of senders that are remembered.
        self._usage = {sender: seconds for sender, seconds in scaled.items() if seconds > 1e-6}
        self._total, self._weight = sum(self._usage.values()), 1.0
