"""Days of a training run in UTC: the moment at which it starts, the day on which it ends, the hours to its deadline."""

from datetime import UTC, date, datetime, time, timedelta


def first_moment(start: date | None, now: datetime) -> datetime:
    """Return the moment at which a run starts: at midnight UTC of the day that the user named, or now without one."""
    return now if start is None else datetime.combine(start, time(), UTC)


def day_after(begins: datetime, hours: float) -> date:
    """Return the day on which a number of hours after a moment ends; at most the last day that a date can state."""
    most_hours = (datetime.combine(date.max, time(), UTC) - begins) / timedelta(hours=1)
    return (begins + timedelta(hours=min(hours, most_hours))).date()


def check_deadline(deadline: date | None, start: date, today: date) -> None:
    """Check that a run which starts on a day may still end by its deadline, the last day on which it may end.

    Raises:
        ValueError: the deadline has passed, or is before the start.
    """
    if deadline is not None and deadline < today:
        raise ValueError(f"deadline ({deadline}) has passed: today is {today} in UTC; give a later day")
    if deadline is not None and deadline < start:
        raise ValueError(f"deadline ({deadline}) must not be before the start ({start}); give a later day")


def hours_until(deadline: date | None, begins: datetime) -> float | None:
    """Return the hours from a moment to the end of the deadline, the last day on which the run may end; None without a
    deadline."""
    if deadline is None:
        return None
    return (datetime.combine(deadline, time(), UTC) - begins) / timedelta(hours=1) + 24.0
