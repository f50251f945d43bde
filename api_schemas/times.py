"""Checks and calculations for time windows of a day and time zones in their written form: `22:00-06:00` in
`Europe/Berlin`."""

import difflib
import re
from datetime import datetime, time
from typing import Annotated
from zoneinfo import ZoneInfo, available_timezones

from pydantic import AfterValidator, Field, ValidationInfo

_WINDOW = re.compile(r"([0-9]{1,2}):([0-9]{2})-([0-9]{1,2}):([0-9]{2})")


def check_zone(field: str, name: str) -> str:
    """Return the name of an IANA time zone after checking that the zone exists.

    Raises:
        ValueError: the zone is unknown; the message lists close matches.
    """
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        close = difflib.get_close_matches(name, available_timezones(), n=3)
        hint = f"did you mean {' or '.join(close)}?" if close else "use one such as Europe/Berlin, or UTC"
        raise ValueError(f"{field} ({name}) is not a time zone of the IANA database; {hint}") from None
    return name


def check_windows(field: str, windows: tuple[str, ...]) -> tuple[str, ...]:
    """Return time windows of a day after checking that each has the form `HH:MM-HH:MM`.

    Raises:
        ValueError: a window has another form, or is empty.
    """
    for window in windows:
        try:
            start, end = _ends(window)
        except ValueError:
            raise ValueError(f"{field} ({window}) is not a window of the day; write 22:00-06:00") from None
        if start == end:
            raise ValueError(f"{field} ({window}) is empty; leave the windows out for the whole day")
    return windows


def _known_zone(name: str, info: ValidationInfo) -> str:
    return check_zone(str(info.field_name), name)


def _readable_windows(windows: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
    return check_windows(str(info.field_name), windows)


TimeZone = Annotated[str, Field(max_length=64), AfterValidator(_known_zone)]
"""Name of an IANA time zone."""
DailyWindows = Annotated[tuple[str, ...], Field(max_length=24), AfterValidator(_readable_windows)]
"""Time windows of a day, such as `22:00-06:00`."""


def is_open(windows: tuple[str, ...], zone: str, moment: datetime) -> bool:
    """Whether a moment lies in one of the daily time windows. True if there are no windows, which means that any time
    is allowed."""
    clock = moment.astimezone(ZoneInfo(zone)).time()
    return not windows or any(_contains(*_ends(window), clock) for window in windows)


def midnight(zone: str, moment: datetime) -> datetime:
    """Return the moment of the midnight at which the day of the given moment began, in a time zone."""
    local = moment.astimezone(ZoneInfo(zone))
    return local.replace(hour=0, minute=0, second=0, microsecond=0, fold=0)


def _contains(start: time, end: time, clock: time) -> bool:
    """Whether a time of day lies in a time window. A window such as `22:00-06:00` crosses midnight."""
    return start <= clock < end if start < end else clock >= start or clock < end


def _ends(window: str) -> tuple[time, time]:
    matched = _WINDOW.fullmatch(window)
    if matched is None:
        raise ValueError(window)
    hour, minute, to_hour, to_minute = map(int, matched.groups())
    # 24:00 is how people write the end of the day.
    return time(hour, minute), time(0 if (to_hour, to_minute) == (24, 0) else to_hour, to_minute)
