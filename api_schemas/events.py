"""What happened to a study, in order: the content of its event stream and of webhooks."""

from datetime import datetime

from pydantic import Field, JsonValue

from shardtune.api_schemas.base import Schema

STUDY_EVENTS = (
    "study.created",
    "study.phase_changed",
    "study.paused",
    "study.resumed",
    "study.extended",
    "study.best_changed",
    "study.complete",
    "study.cancelled",
    "study.failed",
)
TRIAL_EVENTS = (
    "trial.created",
    "trial.running",
    "trial.waiting",
    "trial.complete",
    "trial.infeasible",
    "trial.pruned",
    "trial.failed",
    "trial.cancelled",
)
RUN_EVENTS = ("run.leased", "run.ended")
BEST_EVENTS = ("best.stale", "best.proposed", "best.replaced", "best.renewed", "best.regression")
"""About what is served, not part of any study's stream: told to webhooks, kept as decisions. An answer waits for
approval; another is served now; the present one was measured again and stays; it has become slower without a change."""
EVENT_TYPES = (*STUDY_EVENTS, *TRIAL_EVENTS, *RUN_EVENTS, *BEST_EVENTS)
"""`noun.what_happened`; `trial.waiting` means that a run of it will be repeated."""


class Event(Schema):
    """One thing that happened, written in the transaction that made it true; never changed afterwards."""

    study_id: str
    number: int
    """1, 2, 3 … within the study, without gaps, in the order in which things became true."""
    type: str
    """One of `EVENT_TYPES`; readers skip those they do not know."""
    created_at: datetime
    data: dict[str, JsonValue]
    """What changed: `trial_number`, `state`, `attempt`, `worker`, figures. For details read the noun itself."""


class EventPage(Schema):
    """Events after a number."""

    events: tuple[Event, ...]
    next_after: int
    """Ask for events after this one next."""
    is_last: bool = Field(description="The study has ended and nothing follows this page, unless it is extended.")
    """The study has ended and nothing follows this page, unless it is extended."""
