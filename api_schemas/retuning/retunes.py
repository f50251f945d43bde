"""Schemas of a retune: the repeated measurement of one recommendation, with its cost and outcome."""

from datetime import datetime
from enum import StrEnum

from pydantic import Field

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.machines.fingerprints import FieldChange
from shardtune.api_schemas.times import DailyWindows, TimeZone
from shardtune.api_schemas.training.workload import Workload


class RetuneCause(StrEnum):
    """Reason why a recommendation is measured again."""

    FINGERPRINT = "fingerprint"
    """Hardware or software changed since the recommendation was measured."""
    SCHEDULE = "schedule"
    DRIFT = "drift"
    """A canary run (periodic speed check) measured the configuration slower than before."""
    MANUAL = "manual"
    """A user requested the retune."""


class RetuneState(StrEnum):
    """State of a retune: `queued → running → ended`; a retune for which no worker is free returns to `queued`."""

    QUEUED = "queued"
    RUNNING = "running"
    ENDED = "ended"


OPEN_RETUNE_STATES = (RetuneState.QUEUED, RetuneState.RUNNING)


class RetuneOutcome(StrEnum):
    """Outcome of a retune (repeated measurement of a recommendation)."""

    KEPT = "kept"
    """The recommended configuration is still the best known, as new runs on the current fingerprint (hardware and
    software) show."""
    REPLACED = "replaced"
    """A different configuration was confirmed to be faster. Approval rules decide whether it becomes the
    recommendation."""
    INCONCLUSIVE = "inconclusive"
    FAILED = "failed"
    SKIPPED = "skipped"
    """The retune (repeated measurement) was not started or was stopped, because it costs more than it saves, or because
    a user cancelled it."""


class Gain(Schema):
    """Speed of the new best configuration divided by the speed of the previous recommendation, with its 95 %
    interval."""

    value: float
    ci95: tuple[float, float]


class Retune(Schema):
    """Retune as stored: one repeated measurement of a recommendation."""

    retune_id: str
    project_id: str
    target_key: str
    """Key of the tuning target (model + workload + cluster) whose recommendation is measured again."""
    cause: RetuneCause
    model: str | None = None
    """Name of the model of the recommendation; None if the tuning target has no recommendation any more."""
    workload: Workload | None = None
    """Workload of the recommendation that is measured again."""
    changes: tuple[FieldChange, ...] = ()
    """Changes of hardware and software since the recommendation was measured: the changed field, its old and its new
    value."""
    schedule_id: str | None = None
    state: RetuneState
    outcome: RetuneOutcome | None = None
    reason: str | None = None
    """Reason, as text, why the retune waits, or why it ended with its outcome."""
    waits_for_budget: bool = False
    """Whether the retune has begun and waits now, because the limit of GPU-seconds for the day is reached."""
    challenge_study_id: str | None = None
    """Id of the study that compares the recommended configuration, in paired runs, with a few others that may be faster
    (challengers)."""
    search_study_id: str | None = None
    """Id of the study that searches for a new configuration. None unless the comparison with a few challengers was
    inconclusive."""
    gpu_seconds: float
    """GPU-seconds (seconds × ranks) that the retune has used so far, in all attempts of its studies that have ended."""
    planned_gpu_seconds: float | None = None
    """Length in GPU-seconds of the training run that uses the recommendation, as its owner declared it. None if none
    was declared; then no saving is calculated."""
    expected_saving_gpu_seconds: float | None = None
    """Expected saving in GPU-seconds: the declared length of the training run, multiplied by the fraction of time that
    the measured gain saves. 0 if the recommendation was kept; None if the saving is not known."""
    price: float | None = None
    """Price of `gpu_seconds` in the operator's currency; None if no price is configured."""
    gain: Gain | None = None
    not_before: datetime
    created_at: datetime
    started_at: datetime | None = None
    ended_at: datetime | None = None

    @property
    def changed_fields(self) -> tuple[str, ...]:
        """Names of the hardware and software fields that changed."""
        return tuple(change.field for change in self.changes)


class RetunePage(Schema):
    """Page of retunes (repeated measurements of recommendations), newest first."""

    retunes: tuple[Retune, ...]
    next_page_token: str | None = None


class PlannedRun(Schema):
    """Declared length of the training run that will use a best configuration."""

    planned_gpu_hours: float | None = Field(default=None, gt=0, le=1e9)
    """Declared length of the training run in hours × GPUs. If None, it is not declared, and no saving is calculated for
    a retune (repeated measurement of the configuration)."""


class RetunePolicy(Schema):
    """Limits of a project's automatic retuning; the operator's limits for all projects apply in addition."""

    gpu_seconds_per_day: float | None = Field(default=None, ge=0)
    """Maximum GPU-seconds (seconds × ranks) that retunes and canaries (speed checks) may use in one day, which begins
    at midnight in `timezone`. If None, the project sets no limit."""
    timezone: TimeZone = "UTC"
    """IANA time zone in which days begin and time windows are read, such as `Europe/Berlin`."""
    windows: DailyWindows = ()
    """Daily time windows in which retunes may start, such as `22:00-06:00`. If empty, they may start at any time."""
    on_fingerprint: bool = True
    """Whether a change of hardware or software triggers retunes of the recommendations that became stale by it. If
    False, only schedules trigger retunes."""
