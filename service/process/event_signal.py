"""Who in this process waits for events of which study: one cheap query per poll, however many wait."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from shardtune.db.queries.events import Head


class EventSignal:
    """Newest event numbers of the studies somebody watches. All of it runs in the event loop's thread."""

    def __init__(self) -> None:
        self._watchers: Counter[str] = Counter()
        self._heads: dict[str, Head] = {}
        self._news = asyncio.Event()

    def watched(self) -> tuple[str, ...]:
        """Studies somebody watches."""
        return tuple(self._watchers)

    def update(self, heads: Mapping[str, Head]) -> None:
        """Take in what a poll found, and wake everybody."""
        self._heads = dict(heads)
        self._news.set()
        self._news = asyncio.Event()

    def has_ended(self, study_id: str) -> bool:
        """Whether the study had ended when it was last looked at."""
        return (head := self._heads.get(study_id)) is not None and head.has_ended

    @contextmanager
    def watch(self, study_id: str) -> Iterator[Callable[[int], bool]]:
        """Have the study polled; yields a function that tells whether it has events after a number."""
        self._watchers[study_id] += 1
        try:
            yield lambda number: (head := self._heads.get(study_id)) is not None and head.last_event > number
        finally:
            self._watchers[study_id] -= 1
            if not self._watchers[study_id]:
                del self._watchers[study_id]

    async def poll(self, timeout_s: float) -> None:
        """Wait for the next poll's end, at most so long."""
        try:
            await asyncio.wait_for(self._news.wait(), timeout_s)
        except TimeoutError:
            return


class StreamLimits:
    """How many streams each client holds open."""

    def __init__(self) -> None:
        self._taken: Counter[str] = Counter()

    def take(self, client: str, most: int, most_of_all: int) -> bool:
        """Count one more; False when the client, or all together, have as many as they may."""
        if self._taken[client] >= most or self._taken.total() >= most_of_all:
            return False
        self._taken[client] += 1
        return True

    @property
    def total(self) -> int:
        """How many there are."""
        return self._taken.total()

    def leave(self, client: str) -> None:
        """Count one less."""
        self._taken[client] -= 1
        if not self._taken[client]:
            del self._taken[client]
