"""Events of a study, in order: the content of its event stream and of webhooks."""

from datetime import datetime
from enum import StrEnum

from pydantic import Field, JsonValue

from shardtune.api_schemas.base import Schema


class EventType(StrEnum):
    """Type of an event: `noun.what_happened`. Those of `best` are about recommendations, and no part of any study's
    stream."""

    STUDY_CREATED = "study.created"
    """The study was stored."""
    STUDY_STARTED = "study.started"
    """The worker that the study waited for has registered."""
    STUDY_PHASE_CHANGED = "study.phase_changed"
    """The study entered its next phase."""
    STUDY_PAUSED = "study.paused"
    """A user paused the study."""
    STUDY_RESUMED = "study.resumed"
    """A user resumed the study, or extended it after its end."""
    STUDY_EXTENDED = "study.extended"
    """A user raised the study's budget."""
    STUDY_BEST_CHANGED = "study.best_changed"
    """Another trial of the search is the fastest, or its speed changed; the verdict is still open."""
    STUDY_COMPLETE = "study.complete"
    """The study ended with an answer."""
    STUDY_CANCELLED = "study.cancelled"
    """A user cancelled the study."""
    STUDY_FAILED = "study.failed"
    """The study ended without an answer."""
    TRIAL_CREATED = "trial.created"
    """The search chose a configuration."""
    TRIAL_RUNNING = "trial.running"
    """A worker runs the trial."""
    TRIAL_WAITING = "trial.waiting"
    """A run of the trial will be repeated."""
    TRIAL_COMPLETE = "trial.complete"
    """The trial was measured."""
    TRIAL_INFEASIBLE = "trial.infeasible"
    """The configuration took too much memory, or trained something else."""
    TRIAL_PRUNED = "trial.pruned"
    """The trial ended early, because it could not become the fastest."""
    TRIAL_FAILED = "trial.failed"
    """The trial could not be measured, by no fault of its configuration."""
    TRIAL_CANCELLED = "trial.cancelled"
    """The trial was given up with its study."""
    RUN_LEASED = "run.leased"
    """A worker took a run: an attempt began."""
    RUN_ENDED = "run.ended"
    """An attempt ended."""
    BEST_STALE = "best.stale"
    """The machines have changed since the recommendation was measured."""
    BEST_PROPOSED = "best.proposed"
    """A new answer waits for approval."""
    BEST_REPLACED = "best.replaced"
    """Another answer is recommended now."""
    BEST_RENEWED = "best.renewed"
    """The recommended configuration was measured again and stays."""
    BEST_REGRESSION = "best.regression"
    """The configuration has become slower without a change of the machines."""


EVENT_TYPES = tuple(EventType)
DEFAULT_WEBHOOK_EVENTS = (
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
