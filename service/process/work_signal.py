"""Wake the workers that wait for work, without a thread for each: one cheap database query per poll reports whether any
study changed.

Workers of the same hardware and software get the same answer from the same state of the studies. After one of them was
told that there is no work, the others do not query again before a study changes: 200 idle workers cost one query, not
200. A run pinned to a worker is offered to that worker even after an identical worker was told that there is no work.
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
"""Number of threads in which claims run. A claim searches for work for a worker that asks for some."""
_MAX_THREADS_PER_SENDER = CLAIM_THREADS - 1
"""Maximum number of claim threads that one project may use. One thread is therefore left for other projects, even if
all claims of this project wait.
"""
# A worker's own description determines its kind, and it may claim anything; without a bound, memory would grow.
_MAX_KINDS = 256
"""Maximum number of kinds of workers (equal hardware and software) for which the last answer "no work" is remembered.
"""
# Some work appears without a change of a study: a budget in seconds runs out, and the final comparison begins.
_RECHECK_S = 5.0
"""Seconds for which an answer "no work" is believed. After that, a worker's request for work is tried again."""


class _EmptyAnswer(NamedTuple):
    """Last answer "no work" that a worker of one kind got; it holds for all workers of equal hardware, software and
    project.
    """

    change_count: int
    began_s: float
    reserved: frozenset[str]


class WorkSignal:
    """Latest known versions of the studies, and the kinds of workers (equal hardware, software and project) for which
    no work was found. Used in the event loop's thread only.
    """

    def __init__(self) -> None:
        self.waiting_requests = 0
        """Number of requests for work that workers have sent and that wait for an answer at the moment."""
        self._versions: Mapping[str, int] = {}
        self._change_count = 0
        self._empty_answers: dict[str, _EmptyAnswer] = {}
        self._changed = asyncio.Event()
        self._locks_by_kind: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._fair_queue = FairQueue(CLAIM_THREADS, _MAX_THREADS_PER_SENDER)
        self._limiter: CapacityLimiter | None = None

    async def run_in_claim_thread(self, sender: str, query: Callable[[], Result]) -> Result:
        """Run a database query for a sender in one of the threads reserved for claims (searches for work for a
        worker).
        """
        if self._limiter is None:
            # Made on first use: an anyio limiter belongs to the event loop in which it is created.
            self._limiter = CapacityLimiter(CLAIM_THREADS)
        async with self._fair_queue.slot(sender):
            return await to_thread.run_sync(query, limiter=self._limiter)

    def kind_lock(self, kind: str) -> asyncio.Lock:
        """Lock that lets workers of one kind (equal hardware, software and project) search for work only one after
        the other.
        """
        # They want the same studies, and each study answers one request at a time. A weak dictionary drops locks that
        # nobody holds.
        return self._locks_by_kind.setdefault(kind, asyncio.Lock())

    @property
    def change_count(self) -> int:
        """Number of times that the running studies were seen to have changed. The caller reads it before a claim, to
        learn afterwards whether something changed meanwhile.
        """
        return self._change_count

    def update(self, versions: Mapping[str, int]) -> None:
        """Store the version numbers of the running studies. If any of them is new, wake the requests that wait for
        work.
        """
        if versions == self._versions:
            return
        self._versions = dict(versions)
        self._change_count += 1
        self._changed.set()
        self._changed = asyncio.Event()

    def record_no_work(
        self, kind: str, changes_before: int, reserved: frozenset[str] = frozenset(), began_s: float | None = None
    ) -> None:
        """Record that a claim found no work for workers of this kind (equal hardware and software), in the state that
        the studies had before the claim. Workers with an id in `reserved` are exempt, because runs are kept for them.

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
        """Whether a worker's claim may find work, although the last claim of a worker of the same kind (equal
        hardware and software) found none.

        `asked_s`: time at which the worker asked for work; an answer "no work" from before that time does not count.
        """
        last = self._empty_answers.get(kind)
        if last is None or worker_id in last.reserved:
            return True
        if asked_s is not None:
            return last.began_s < asked_s
        return last.change_count != self._change_count or time.monotonic() - last.began_s >= _RECHECK_S

    async def wait_for_change(self, timeout_s: float) -> None:
        """Wait for a change of any running study, at most `timeout_s` seconds."""
        # Not `wait_for`, which makes a task before Python 3.12: every change wakes up to hundreds of waiting requests.
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
