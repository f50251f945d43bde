"""Cron expressions in a time zone, by `cronsim`: correct on the days on which the clocks change.

A tick whose local time does not exist (spring) happens at the first moment after the gap; a tick whose local time
exists twice (autumn) happens at the first of both. An expression with `*` in minute or hour follows elapsed time
instead, as in Debian's cron. All results are in UTC, strictly increasing.
"""

from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from itertools import islice, pairwise
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

_FIELDS = "minute hour day-of-month month day-of-week, such as '0 3 * * 0' (Sundays at 03:00)"
# More than a year of a daily tick, so that both days on which the clocks change are among them.
_CHECKED_TICKS = 400
"""Number of future ticks (moments at which a schedule is due) whose distances in time are checked when a cron
expression is validated.
"""
_LAST_YEAR = 9998
"""Last year whose ticks (moments at which a schedule is due) can be converted to UTC from every time zone. Python's
dates end with the year 9999.
"""


def check_expression(expression: str, zone: str, now: datetime, least_gap_s: float) -> None:
    """Reject a cron expression that cannot be scheduled.

    Raises:
        ValueError: the text is no cron expression, or the expression is never due, or due more often than every
            `least_gap_s` seconds.
    """
    if len(expression.split()) != 5:
        raise ValueError(f"cron ({expression}) must have five fields: {_FIELDS}")
    try:
        first_ticks = list(islice(ticks(expression, zone, now), _CHECKED_TICKS))
    except CronSimError as error:
        raise ValueError(
            f"cron ({expression}) cannot be read: {_lower_first(error)}; its fields are {_FIELDS}"
        ) from None
    if not first_ticks:
        raise ValueError(f"cron ({expression}) is never due; give a day that its months have")
    gap_s = min(((later - earlier).total_seconds() for earlier, later in pairwise(first_ticks)), default=least_gap_s)
    if gap_s < least_gap_s:
        raise ValueError(
            f"cron ({expression}) is due every {gap_s:g} s, but at least {least_gap_s:g} s must lie between two ticks; "
            "run it less often, or have the operator lower SHARDTUNE_SCHEDULE_LEAST_GAP_S"
        )


def next_tick(expression: str, zone: str, after: datetime) -> datetime | None:
    """First moment after a given one at which a cron expression is due; None if there is none within fifty years."""
    return next(ticks(expression, zone, after), None)


def describe(expression: str) -> str:
    """Describe a cron expression in words, such as `At 03:00 on Sunday`."""
    return CronSim(expression, datetime.now(UTC)).explain()


def ticks(expression: str, zone: str, after: datetime) -> Iterator[datetime]:
    """Iterate over the moments after a given one at which a cron expression is due.

    Raises:
        CronSimError: the expression cannot be read.
    """
    last = after.astimezone(UTC)
    for local in _local_ticks(expression, last.astimezone(ZoneInfo(zone))):
        tick = local.astimezone(UTC)
        # cronsim restarts in the hour that exists twice, and lets several ticks coincide in a gap: keep increasing ones
        # only.
        if tick > last:
            last = tick
            yield tick


def _local_ticks(expression: str, after: datetime) -> Iterator[datetime]:
    ticks_of_zone = CronSim(expression, after)
    # Dates end with the year 9999, which a rare expression reaches: 29 February on a Sunday is due every 28 years.
    with suppress(OverflowError):
        for local in ticks_of_zone:
            if local.year > _LAST_YEAR:
                return
            yield local


def _lower_first(error: Exception) -> str:
    text = str(error)
    return text[:1].lower() + text[1:]
