"""Schemas of events in the order of their occurrence, delivered by a study's event stream and by webhooks."""

from datetime import datetime
from enum import StrEnum

from pydantic import Field, JsonValue

from shardtune.api_schemas.base import Schema


class EventType(StrEnum):
    """Type of an event: a noun, a dot and what happened, such as `study.complete`. Events of type `best.…` concern
    recommendations and are not part of a study's event stream."""

    STUDY_CREATED = "study.created"
    """A study was created and stored."""
    STUDY_STARTED = "study.started"
    """The worker for which the study waited has registered, and the study started."""
    STUDY_PHASE_CHANGED = "study.phase_changed"
    """The study entered its next phase, such as the final comparison."""
    STUDY_PAUSED = "study.paused"
    """A user paused the study."""
    STUDY_RESUMED = "study.resumed"
    """A user resumed the study, or extended it after its end."""
    STUDY_EXTENDED = "study.extended"
    """A user raised the study's budget."""
    STUDY_BEST_CHANGED = "study.best_changed"
    """The fastest trial of the search changed, or its measured speed did. The verdict is still open."""
    STUDY_COMPLETE = "study.complete"
    """The study ended with a result."""
    STUDY_CANCELLED = "study.cancelled"
    """A user cancelled the study."""
    STUDY_FAILED = "study.failed"
    """The study ended without a result, because something failed."""
    TRIAL_CREATED = "trial.created"
    """The search chose a configuration and created a trial for it."""
    TRIAL_RUNNING = "trial.running"
    """A worker runs the trial."""
    TRIAL_WAITING = "trial.waiting"
    """A run of the trial ended without a usable result and will be repeated."""
    TRIAL_COMPLETE = "trial.complete"
    """The trial was measured successfully."""
    TRIAL_INFEASIBLE = "trial.infeasible"
    """The trial's configuration cannot be used: it exceeded the memory limit, or its training differed from what the
    workload defines."""
    TRIAL_PRUNED = "trial.pruned"
    """The trial was stopped early, because it could not become the fastest."""
    TRIAL_FAILED = "trial.failed"
    """The trial could not be measured, for reasons other than its configuration."""
    TRIAL_CANCELLED = "trial.cancelled"
    """The trial was cancelled because its study ended."""
    RUN_LEASED = "run.leased"
    """A worker leased a run (took it for a limited time), with which an attempt at the run began."""
    RUN_ENDED = "run.ended"
    """An attempt at a run ended, with a result or with a failure."""
    BEST_STALE = "best.stale"
    """The hardware or software changed since the recommendation was measured."""
    BEST_PROPOSED = "best.proposed"
    """A new best configuration waits for approval."""
    BEST_REPLACED = "best.replaced"
    """A different configuration is now recommended."""
    BEST_RENEWED = "best.renewed"
    """The recommended configuration was measured again, and it remains recommended."""
    BEST_TARGET_CHANGED = "best.target_changed"
    """The answer of a study for its target (a larger cluster) changed. Runs on the target confirmed or replaced it, or
    the result of such runs was withdrawn."""
    BEST_REGRESSION = "best.regression"
    """The recommended configuration has become slower although hardware and software are unchanged."""


EVENT_TYPES = tuple(EventType)
DEFAULT_WEBHOOK_EVENTS = (
    EventType.STUDY_COMPLETE,
    EventType.STUDY_CANCELLED,
    EventType.STUDY_FAILED,
    *(event for event in EVENT_TYPES if event.startswith("best.")),
)
"""Event types that a webhook receives by default: ends of studies and changes of recommendations. The hundreds of other
events that a study has are left out."""


class Event(Schema):
    """Event of a study or of a recommendation. It is written in the same database transaction as the change that it
    reports, and is never modified."""

    study_id: str
    number: int
    """Number of the event within its study: 1, 2, 3 … without gaps, in the order of the changes."""
    type: str
    """Type of the event, such as `study.complete`. Clients should ignore types that they do not know."""
    created_at: datetime
    data: dict[str, JsonValue]
    """New values of what changed, such as `trial_number`, `state`, `attempt`, `worker` or figures. Request the study or
    recommendation itself for details."""


class EventPage(Schema):
    """Page of a study's events, beginning after a given event number."""

    events: tuple[Event, ...]
    next_after: int
    """Event number after which the next page begins; pass it to the next request."""
    is_last: bool = Field(description="The study has ended and nothing follows this page, unless it is extended.")
    """Whether this page is the last one: the study has ended and no event follows, unless the study is extended."""
