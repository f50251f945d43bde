"""What happened to a study, in order: the content of its event stream and of webhooks."""

from datetime import datetime
from enum import StrEnum

from pydantic import Field, JsonValue

from shardtune.api_schemas.base import Schema


class EventType(StrEnum):
    """`noun.what_happened`. Those of `best` are about what is served, and no part of any study's stream."""

    STUDY_CREATED = "study.created"
    STUDY_STARTED = "study.started"
    """The worker that it waited for is there."""
    STUDY_PHASE_CHANGED = "study.phase_changed"
    STUDY_PAUSED = "study.paused"
    STUDY_RESUMED = "study.resumed"
    STUDY_EXTENDED = "study.extended"
    STUDY_BEST_CHANGED = "study.best_changed"
    STUDY_COMPLETE = "study.complete"
    STUDY_CANCELLED = "study.cancelled"
    STUDY_FAILED = "study.failed"
    TRIAL_CREATED = "trial.created"
    TRIAL_RUNNING = "trial.running"
    TRIAL_WAITING = "trial.waiting"
    """A run of it will be repeated."""
    TRIAL_COMPLETE = "trial.complete"
    TRIAL_INFEASIBLE = "trial.infeasible"
    TRIAL_PRUNED = "trial.pruned"
    TRIAL_FAILED = "trial.failed"
    TRIAL_CANCELLED = "trial.cancelled"
    RUN_LEASED = "run.leased"
    RUN_ENDED = "run.ended"
    BEST_STALE = "best.stale"
    """The machines have changed since it was measured."""
    BEST_PROPOSED = "best.proposed"
    """An answer waits for approval."""
    BEST_REPLACED = "best.replaced"
    """Another answer is served now."""
    BEST_RENEWED = "best.renewed"
    """The present answer was measured again and stays."""
    BEST_REGRESSION = "best.regression"
    """It has become slower without a change."""


EVENT_TYPES = tuple(EventType)
WHAT_MATTERS = (
    EventType.STUDY_COMPLETE,
    EventType.STUDY_CANCELLED,
    EventType.STUDY_FAILED,
    *(event for event in EVENT_TYPES if event.startswith("best.")),
)
"""What webhooks are told of unless they ask for more: ends of studies, and what becomes of answers. A study has hundreds of
other events."""


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
