"""Log of a study: its newest events as sentences, with their reasons."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.orm import Session

from shardtune.api_schemas.notifications.events import EventType
from shardtune.db.queries import events, leases, trials
from shardtune.db.tables.events import EventRow
from shardtune.service.wording.event_words import SHOWN, event_sentence

_MOST_EVENTS = 40
"""Maximum number of events that are read for the log. The log may have fewer lines, because some events have no
sentence."""


@dataclass(frozen=True)
class LogLine:
    """One event of a study."""

    at: datetime
    text: str
    href: str
    """Address of the page of the event's trial; empty if the event concerns no trial."""


def study_log(session: Session, study_id: str, link: str, is_system: bool = False) -> tuple[LogLine, ...]:
    """Return log lines of a study's newest events, newest first. `link`: address of the study's trials, to which an
    event's trial number is added.

    `is_system`: whether the service started the study itself.
    """
    rows = events.newest(session, study_id, SHOWN, _MOST_EVENTS)
    numbers = [row.data["trial_number"] for row in rows if row.type is EventType.TRIAL_CREATED]
    reasons = trials.reasons(session, study_id, numbers)
    failures = leases.failures_of_attempts(session, _run_ids(rows))
    lines = []
    for row in rows:
        number = row.data.get("trial_number")
        failure = failures.get((row.data.get("run_id", ""), row.data.get("attempt", 0)))
        reason = reasons.get(number) if isinstance(number, int) else None
        text = event_sentence(row.type, row.data, reason, failure.message if failure else "", is_system)
        if text:
            lines.append(LogLine(row.created_at, text, "" if number is None else f"{link}/{number}"))
    return tuple(lines)


def _run_ids(rows: Sequence[EventRow]) -> list[str]:
    return [row.data["run_id"] for row in rows if row.type is EventType.RUN_ENDED]
