"""Database clock, common to all replicas, with which leases, schedules and keys are written and checked. A process
reads it every few seconds and adds its own elapsed time, which changes of the machine's date do not affect. Requests
need no extra query; the error is half the duration of the reading."""

import time
from datetime import UTC, datetime, timedelta

from sqlalchemy import Engine, select
from sqlalchemy.sql.functions import func

_ELAPSED = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""System clock that counts elapsed time and, on Linux, also advances while the machine is suspended."""
_USELESS_S = 1.0
"""Seconds that reading the database's clock may take. A reading that took longer is less accurate than the previous
reading, which is then kept."""


def utc_now() -> datetime:
    """Return the present time in UTC by this machine's clock."""
    return datetime.now(UTC)


class DatabaseClock:
    """Callable that returns the present time by the database's clock. For SQLite, which has no clock of its own, it
    returns the time of this machine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._ahead: timedelta | None = None
        """Difference between the database's time and this machine's clock of elapsed time; None before the database's
        clock was read."""

    def __call__(self) -> datetime:
        return utc_now() if self._ahead is None else _elapsed() + self._ahead

    @property
    def offset_s(self) -> float:
        """Seconds by which this machine's clock is ahead of the database's."""
        return (utc_now() - self()).total_seconds()

    def read(self) -> None:
        """Read the present time from the database, and correct the stored difference between the two clocks."""
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
