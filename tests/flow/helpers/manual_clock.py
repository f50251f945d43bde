"""A clock that a test turns."""

from datetime import UTC, datetime, timedelta


class Clock:
    """Stands still until it is turned."""

    def __init__(self) -> None:
        self.moment = datetime(2026, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.moment

    def turn(self, seconds: float) -> None:
        self.moment += timedelta(seconds=seconds)
