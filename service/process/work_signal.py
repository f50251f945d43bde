"""Waiting for work without threads: one cheap query per poll and process tells whether anything has changed.

Workers alike (the same hardware and software) get the same answer from the same state of the studies. So once one of
them was told "nothing", none of the others asks before a study changes: 200 idle workers cost one look, not 200. Only
those look again for which something waits that nobody else may take, such as the second run of a pair they began.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import NamedTuple, TypeVar
from weakref import WeakValueDictionary

from anyio import CapacityLimiter, to_thread

from shardtune.service.process.fair_queue import Turns

Looked = TypeVar("Looked")

CLAIM_THREADS = 4
"""Claims sample, which is work of the CPU: more of them would only take turns at the interpreter's lock, and the
threads of heartbeats and reports are others."""
_OF_ONE_SENDER = CLAIM_THREADS - 1
"""Whatever one project's claims wait for, one thread is for the others."""
_MOST_KINDS = 256
"""Of workers, whose last look is remembered: what a worker says it is makes a kind, and it may say anything."""
_LOOK_AGAIN_S = 5.0
"""Some work appears without a change of a study: a budget in seconds runs out and the confirmation begins."""


class _Nothing(NamedTuple):
    """What the last look of a kind of worker came to."""

    seen: int
    began_s: float
    reserved: frozenset[str]


class WorkSignal:
    """The studies' versions as last seen, and who found nothing there. Belongs to the event loop's thread."""

    def __init__(self) -> None:
        self.waiting = 0
        """Requests held open now."""
        self._versions: Mapping[str, int] = {}
        self._seen = 0
        self._found_nothing: dict[str, _Nothing] = {}
        self._changed = asyncio.Event()
        self._of_kind: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._threads = Turns(CLAIM_THREADS, _OF_ONE_SENDER)
        self._limiter: CapacityLimiter | None = None

    async def in_thread(self, sender: str, look: Callable[[], Looked]) -> Looked:
        """Look at the database for a sender's question, in one of the threads for claims."""
        if self._limiter is None:
            # Made inside the loop it belongs to.
            self._limiter = CapacityLimiter(CLAIM_THREADS)
        async with self._threads.turn(sender):
            return await to_thread.run_sync(look, limiter=self._limiter)

    def turn(self, kind: str) -> asyncio.Lock:
        """Workers of one kind claim one after the other: they want the same studies, in which one asks at a time."""
        return self._of_kind.setdefault(kind, asyncio.Lock())

    @property
    def seen(self) -> int:
        """Grows with every change that was seen; note it before a claim."""
        return self._seen

    def update(self, versions: Mapping[str, int]) -> None:
        """Take in the versions of the running studies, and wake the waiting when any differs."""
        if versions == self._versions:
            return
        self._versions = dict(versions)
        self._seen += 1
        self._changed.set()
        self._changed = asyncio.Event()

    def found_nothing(
        self, kind: str, seen: int, reserved: frozenset[str] = frozenset(), began_s: float | None = None
    ) -> None:
        """Workers of this kind have no work in the state that was seen before the claim, but for the `reserved` ids.

        `began_s`: when the claim began, on the monotonic clock; by default now.
        """
        self._found_nothing.pop(kind, None)
        while len(self._found_nothing) >= _MOST_KINDS:
            self._found_nothing.pop(next(iter(self._found_nothing)))
        self._found_nothing[kind] = _Nothing(seen, time.monotonic() if began_s is None else began_s, reserved)

    def may_have_work(self, kind: str, worker_id: str, asked_s: float | None = None) -> bool:
        """Whether a claim could find something that the last one of this kind did not.

        `asked_s`: who asked then wants the state of that moment or later, not what was seen last.
        """
        last = self._found_nothing.get(kind)
        if last is None or worker_id in last.reserved:
            return True
        if asked_s is not None:
            return last.began_s < asked_s
        return last.seen != self._seen or time.monotonic() - last.began_s >= _LOOK_AGAIN_S

    async def change(self, timeout_s: float) -> None:
        """Wait for a change, at most so long."""
        # Not `wait_for`, which makes a task (before Python 3.12): two hundred that wait are woken by every change.
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
