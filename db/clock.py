"""Clock of the database, for all replicas. Leases, schedules and keys are written and judged by it.

A process reads it every few seconds, and carries it on by the time that passes on its own machine, which no setting of
that machine's date changes: no statement more for any request, and an error of half the time the reading took.
"""

import time
from datetime import UTC, datetime, timedelta

from sqlalchemy import Engine, select
from sqlalchemy.sql.functions import func

_ELAPSED = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Clock of this machine that advances while it is suspended, too (Linux)."""
_USELESS_S = 1.0
"""Seconds of a reading beyond which it is less exact than the last one."""


def utc_now() -> datetime:
    """Return the present moment by this machine's clock."""
    return datetime.now(UTC)


class DatabaseClock:
    """Clock that returns the present moment when called. SQLite has no clock of its own: there it is the machine's."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._ahead: timedelta | None = None
        """Database time minus the time elapsed since this machine started; None before the first reading."""

    def __call__(self) -> datetime:
        return utc_now() if self._ahead is None else _elapsed() + self._ahead

    @property
    def offset_s(self) -> float:
        """Seconds by which this machine's clock is ahead of the database's."""
        return (utc_now() - self()).total_seconds()

    def read(self) -> None:
        """Read the database's clock."""
        if self._engine.dialect.name == "sqlite":
            return
        with self._engine.begin() as connection:
            # Opens the transaction, and whatever that takes; its end is a commit (Database.sole says why).
            connection.execute(select(1))
            before = _elapsed()
            moment: datetime = connection.execute(select(func.clock_timestamp())).scalar_one()
            after = _elapsed()
        if self._ahead is None or after - before <= timedelta(seconds=_USELESS_S):
            self._ahead = moment.astimezone(UTC) - (before + (after - before) / 2)


def _elapsed() -> datetime:
    return datetime.fromtimestamp(time.clock_gettime(_ELAPSED), UTC)
