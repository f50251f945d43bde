"""Wake the event streams of this process with one cheap database query per poll, however many streams wait."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from shardtune.db.queries.events import StreamEnd


class EventSignal:
    """Newest event number of each study that an event stream watches. Used in the event loop's thread only, so it
    needs no lock.
    """

    def __init__(self) -> None:
        self._watchers: Counter[str] = Counter()
        self._heads: dict[str, StreamEnd] = {}
        self._news = asyncio.Event()

    def watched(self) -> tuple[str, ...]:
        """Ids of the studies that event streams of this process watch."""
        return tuple(self._watchers)

    def update(self, heads: Mapping[str, StreamEnd]) -> None:
        """Store the newest event number of each watched study, as read from the database just now, and wake all
        waiting streams.
        """
        self._heads = dict(heads)
        # A new event per poll: clearing the old one could miss a stream that has been woken but has not run yet.
        self._news.set()
        self._news = asyncio.Event()

    def has_ended(self, study_id: str) -> bool:
        """Whether a study had ended when the database was last read."""
        return (head := self._heads.get(study_id)) is not None and head.has_ended

    @contextmanager
    def watch(self, study_id: str) -> Iterator[Callable[[int], bool]]:
        """Include a study in the regular reading of new events while a `with` block runs. Yields a function that
        returns whether the study has events after a given number.
        """
        self._watchers[study_id] += 1
        try:
            yield lambda number: (head := self._heads.get(study_id)) is not None and head.last_event > number
        finally:
            self._watchers[study_id] -= 1
            if not self._watchers[study_id]:
                del self._watchers[study_id]

    async def wait_for_poll(self, timeout_s: float) -> None:
        """Wait until new events have been read from the database, at most `timeout_s` seconds."""
        try:
            await asyncio.wait_for(self._news.wait(), timeout_s)
        except TimeoutError:
            return


class StreamLimits:
    """Limits on the number of open event streams: per client, per sender (a project), and in total."""

    def __init__(self) -> None:
        self._open_streams: Counter[str] = Counter()
        self._of_senders: Counter[str] = Counter()

    def open_stream(self, client: str, sender: str, most: int, most_of_all: int) -> bool:
        """Count one more open event stream. Returns False, and counts nothing, if the client has the maximum number
        of streams, or if its project has at least as many open streams as the service has free ones.
        """
        # Measured against what is free: a project with any number of keys leaves half of the places to the others.
        free = most_of_all - self._open_streams.total()
        if self._open_streams[client] >= most or self._of_senders[sender] >= free:
            return False
        self._open_streams[client] += 1
        self._of_senders[sender] += 1
        return True

    @property
    def total(self) -> int:
        """Number of open event streams of this process."""
        return self._open_streams.total()

    def close_stream(self, client: str, sender: str) -> None:
        """Count one open event stream less for a client and its sender."""
        # Those that have none are dropped, so that the counters do not grow with every client that ever came.
        for counter, name in ((self._open_streams, client), (self._of_senders, sender)):
            counter[name] -= 1
            if not counter[name]:
                del counter[name]
