"""Wake the workers that wait for work, without a thread each: one cheap query per poll tells whether any study changed.

Workers of the same hardware and software get the same answer from the same state of the studies. After one was told
that there is no work, the others do not ask before a study changes: 200 idle workers cost one look, not 200. A run
pinned to a worker is offered to it even after an identical worker was told that there is no work.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import NamedTuple, TypeVar
from weakref import WeakValueDictionary

from anyio import CapacityLimiter, to_thread

from shardtune.service.process.fair_queue import FairQueue

Result = TypeVar("Result")

# Claims sample, which uses the CPU: more threads would only compete for the interpreter's lock. Heartbeats and reports
# have threads of their own.
CLAIM_THREADS = 4
"""Number of threads for claims."""
_MAX_THREADS_PER_SENDER = CLAIM_THREADS - 1
"""Number of claim threads that one project may use: whatever its claims wait for, one thread is left for the others."""
# A worker's own description determines its kind, and it may claim anything; without a bound, memory would grow.
_MAX_KINDS = 256
"""Maximum number of worker kinds whose last empty answer is remembered."""
# Some work appears without a change of a study: a budget in seconds runs out, and the final comparison begins.
_RECHECK_S = 5.0
"""Seconds after which an empty answer is checked again."""


class _EmptyAnswer(NamedTuple):
    """Last empty answer for a kind of worker."""

    change_count: int
    began_s: float
    reserved: frozenset[str]


class WorkSignal:
    """Last seen versions of the studies, and worker kinds that found no work. Used in the event loop's thread only."""

    def __init__(self) -> None:
        self.waiting_requests = 0
        """Number of requests held open now."""
        self._versions: Mapping[str, int] = {}
        self._change_count = 0
        self._empty_answers: dict[str, _EmptyAnswer] = {}
        self._changed = asyncio.Event()
        self._locks_by_kind: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._fair_queue = FairQueue(CLAIM_THREADS, _MAX_THREADS_PER_SENDER)
        self._limiter: CapacityLimiter | None = None

    async def run_in_claim_thread(self, sender: str, query: Callable[[], Result]) -> Result:
        """Run a database query for a sender in one of the threads for claims."""
        if self._limiter is None:
            # Made on first use: an anyio limiter belongs to the event loop in which it is created.
            self._limiter = CapacityLimiter(CLAIM_THREADS)
        async with self._fair_queue.slot(sender):
            return await to_thread.run_sync(query, limiter=self._limiter)

    def kind_lock(self, kind: str) -> asyncio.Lock:
        """Lock under which workers of one kind claim one after the other."""
        # They want the same studies, and each study answers one request at a time. A weak dictionary drops locks that
        # nobody holds.
        return self._locks_by_kind.setdefault(kind, asyncio.Lock())

    @property
    def change_count(self) -> int:
        """Counter of changes; note it before a claim."""
        return self._change_count

    def update(self, versions: Mapping[str, int]) -> None:
        """Take in the versions of the running studies, and wake the waiting requests if any differs."""
        if versions == self._versions:
            return
        self._versions = dict(versions)
        self._change_count += 1
        self._changed.set()
        self._changed = asyncio.Event()

    def record_no_work(
        self, kind: str, changes_before: int, reserved: frozenset[str] = frozenset(), began_s: float | None = None
    ) -> None:
        """Record that workers of this kind had no work in the state noted before the claim, except for the `reserved`
        ids.

        `began_s`: time at which the claim began, on the monotonic clock; by default now.
        """
        # Removed first, so that the kind moves to the end and the kind unused for longest is dropped.
        self._empty_answers.pop(kind, None)
        while len(self._empty_answers) >= _MAX_KINDS:
            self._empty_answers.pop(next(iter(self._empty_answers)))
        self._empty_answers[kind] = _EmptyAnswer(
            changes_before, time.monotonic() if began_s is None else began_s, reserved
        )

    def may_have_work(self, kind: str, worker_id: str, asked_s: float | None = None) -> bool:
        """Whether a claim could find work that the last claim of this kind did not.

        `asked_s`: a request of that time needs an answer from that moment or later.
        """
        last = self._empty_answers.get(kind)
        if last is None or worker_id in last.reserved:
            return True
        if asked_s is not None:
            return last.began_s < asked_s
        return last.change_count != self._change_count or time.monotonic() - last.began_s >= _RECHECK_S

    async def wait_for_change(self, timeout_s: float) -> None:
        """Wait for a change, at most `timeout_s` seconds."""
        # Not `wait_for`, which makes a task before Python 3.12: every change wakes up to hundreds of waiting requests.
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
