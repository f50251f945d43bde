"""Limit of the time for which a worker stays without a run; machines that are started for their work end by it."""

from collections.abc import Callable

from shardtune.workers.clock import now_s


class IdleLimit:
    """Limit of the time for which a worker waits without a run; after it the worker ends by itself. The time starts
    again after each run."""

    def __init__(self, minutes: float | None, clock: Callable[[], float] = now_s) -> None:
        """Start counting now. If `minutes` is None, the worker waits for runs without end."""
        self.minutes = minutes
        self._clock = clock
        self._idle_since_s = clock()

    def restart(self) -> None:
        """Count from now, because a run has just ended."""
        self._idle_since_s = self._clock()

    @property
    def is_over(self) -> bool:
        """Whether the worker has been without a run for as long as the limit allows."""
        return self.minutes is not None and self._clock() - self._idle_since_s >= self.minutes * 60

    def describe(self) -> str:
        """Text for people that says for how long the worker has had no run."""
        return f"no run for {self.minutes:g} minutes"
