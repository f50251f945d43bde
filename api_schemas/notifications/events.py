"""Events of a study, in order: the content of its event stream and of webhooks."""

from datetime import datetime
from enum import StrEnum

from pydantic import Field, JsonValue

from shardtune.api_schemas.base import Schema


class EventType(StrEnum):
    """Type of an event: `noun.what_happened`. Those of `best` are about recommendations, and no part of any study's
    stream."""

    STUDY_CREATED = "study.created"
    STUDY_STARTED = "study.started"
    """The worker that the study waited for has registered."""
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
    """A run of the trial will be repeated."""
    TRIAL_COMPLETE = "trial.complete"
    TRIAL_INFEASIBLE = "trial.infeasible"
    TRIAL_PRUNED = "trial.pruned"
    TRIAL_FAILED = "trial.failed"
    TRIAL_CANCELLED = "trial.cancelled"
    RUN_LEASED = "run.leased"
    RUN_ENDED = "run.ended"
    BEST_STALE = "best.stale"
    """The machines have changed since the recommendation was measured."""
    BEST_PROPOSED = "best.proposed"
    """An answer waits for approval."""
    BEST_REPLACED = "best.replaced"
    """Another answer is recommended now."""
    BEST_RENEWED = "best.renewed"
    """The present answer was measured again and stays."""
    BEST_REGRESSION = "best.regression"
    """The configuration has become slower without a change of the machines."""


EVENT_TYPES = tuple(EventType)
WHAT_MATTERS = (
    EventType.STUDY_COMPLETE,
    EventType.STUDY_CANCELLED,
    EventType.STUDY_FAILED,
    *(event for event in EVENT_TYPES if event.startswith("best.")),
)
"""Types that a webhook receives by default: ends of studies and changes of recommendations. A study has hundreds of
other events."""


class Event(Schema):
    """Event, written in the transaction that made it true; never changed afterwards."""

    study_id: str
    number: int
    """Number within the study: 1, 2, 3 … without gaps, in the order in which the events became true."""
    type: str
    """Type, one of `EVENT_TYPES`; readers skip those they do not know."""
    created_at: datetime
    data: dict[str, JsonValue]
    """Changed values: `trial_number`, `state`, `attempt`, `worker`, figures. For details read the resource itself."""


class EventPage(Schema):
    """Events after a number."""

    events: tuple[Event, ...]
    next_after: int
    """Number after which to ask for further events."""
    is_last: bool = Field(description="The study has ended and nothing follows this page, unless it is extended.")
    """The study has ended and nothing follows this page, unless it is extended."""
