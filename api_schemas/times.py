"""Times of day and time zones as people write them: `22:00-06:00` in `Europe/Berlin`."""

import difflib
import re
from datetime import datetime, time
from zoneinfo import ZoneInfo, available_timezones

_WINDOW = re.compile(r"^(\d{1,2}):(\d{2})-(\d{1,2}):(\d{2})$")


def check_zone(field: str, name: str) -> str:
    """Return an IANA time zone's name if it exists.

    Raises:
        ValueError: unknown; with close matches.
    """
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        close = difflib.get_close_matches(name, available_timezones(), n=3)
        hint = f"did you mean {' or '.join(close)}?" if close else "use one such as Europe/Berlin, or UTC"
        raise ValueError(f"{field} ({name}) is not a time zone of the IANA database; {hint}") from None
    return name


def check_windows(field: str, windows: tuple[str, ...]) -> tuple[str, ...]:
    """Return windows of the day if they can be read.

    Raises:
        ValueError: not `HH:MM-HH:MM`, or empty.
    """
    for window in windows:
        try:
            start, end = _ends(window)
        except ValueError:
            raise ValueError(f"{field} ({window}) is not a window of the day; write 22:00-06:00") from None
        if start == end:
            raise ValueError(f"{field} ({window}) is empty; leave the windows out for the whole day")
    return windows


def is_open(windows: tuple[str, ...], zone: str, moment: datetime) -> bool:
    """Whether a moment is in one of the windows; without any, it always is."""
    clock = moment.astimezone(ZoneInfo(zone)).time()
    return not windows or any(_contains(*_ends(window), clock) for window in windows)


def midnight(zone: str, moment: datetime) -> datetime:
    """Return the beginning of the day that a moment is in."""
    local = moment.astimezone(ZoneInfo(zone))
    return local.replace(hour=0, minute=0, second=0, microsecond=0, fold=0)


def _contains(start: time, end: time, clock: time) -> bool:
    """Whether a window contains a time of day; `22:00-06:00` runs over midnight."""
    return start <= clock < end if start < end else clock >= start or clock < end


def _ends(window: str) -> tuple[time, time]:
    matched = _WINDOW.match(window)
    if matched is None:
        raise ValueError(window)
    hour, minute, to_hour, to_minute = map(int, matched.groups())
    # 24:00 is how people write the end of the day.
    return time(hour, minute), time(0 if (to_hour, to_minute) == (24, 0) else to_hour, to_minute)
