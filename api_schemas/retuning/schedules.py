"""Schemas of retuning schedules and of their ticks (planned or manual executions)."""

from datetime import datetime
from enum import StrEnum
from typing import Self

from pydantic import Field, model_validator

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.names import ONE_LINE
from shardtune.api_schemas.times import DailyWindows, TimeZone


class Trigger(StrEnum):
    """Trigger of a retuning schedule. Users can also run any schedule manually (`:run`)."""

    CRON = "cron"
    FINGERPRINT = "fingerprint"
    """A change of hardware or software that makes a recommendation stale."""
    DRIFT = "drift"
    """A canary (speed check of a recommended configuration) found the configuration slower than before. `cron` says
    when canaries run; without it, they run at the period that the operator set."""
    MANUAL = "manual"
    """Manual execution only."""


_TAKES_CRON = (Trigger.CRON, Trigger.DRIFT)


class Overlap(StrEnum):
    """Rule for a tick (planned execution of a schedule) that is due while retunes of the previous tick are
    unfinished."""

    SKIP = "skip"
    QUEUE = "queue"
    """The schedule waits because the retunes that its previous tick started have not ended."""


class CatchUp(StrEnum):
    """Rule for ticks (planned executions of a schedule) that were missed, for example while the service was down."""

    NONE = "none"
    MERGED = "one"
    """All missed ticks (planned executions) are merged into a single one."""
    ALL = "all"
    """Each missed tick (planned execution) takes place, but no more than the newest `catch_up_limit` of them."""


class TickKind(StrEnum):
    """Origin of a tick (execution) of a schedule: the schedule's own times, or a person's request."""

    CRON = "cron"
    MANUAL = "manual"


class TickState(StrEnum):
    """State of a tick of a schedule."""

    QUEUED = "queued"
    STARTED = "started"
    SKIPPED = "skipped"
    MISSED = "missed"


class TargetSelection(Schema):
    """Selection of a project's recommendations for retuning. If no field is given, all recommendations are selected."""

    target_keys: tuple[str, ...] = Field(default=(), max_length=500)
    """Keys of the tuning targets (model + workload + cluster) whose recommendations are selected."""
    model: str | None = Field(default=None, min_length=1, max_length=200)
    """Name or `model_type` of the model whose recommendations are selected."""

    @model_validator(mode="after")
    def _check_one_selection(self) -> Self:
        if self.target_keys and self.model is not None:
            raise ValueError(f"model ({self.model}) cannot be given beside target_keys; leave one of them out")
        return self


class ScheduleSpec(Schema):
    """Settings of a retuning schedule: the times at which recommendations are measured again, and cost limits."""

    name: str = Field(min_length=1, max_length=100, pattern=ONE_LINE)
    trigger: Trigger
    cron: str | None = Field(default=None, max_length=100)
    """Cron expression with five fields: minute, hour, day of month, month, day of week. Required for trigger `cron`;
    for `drift` it sets when canaries run; rejected for other triggers."""
    timezone: TimeZone = "UTC"
    """IANA time zone in which `cron` and `windows` are interpreted."""
    targets: TargetSelection = TargetSelection()
    overlap: Overlap = Overlap.SKIP
    """Rule for a tick (planned execution) that is due while retunes of the previous tick are unfinished: skip the tick,
    or execute it after they have ended."""
    misfire_grace_s: float = Field(default=300, ge=1, le=7 * 86_400)
    """Number of seconds by which a tick (planned execution) may be late; after that it counts as missed."""
    catch_up: CatchUp = CatchUp.MERGED
    """Rule for missed ticks (planned executions). `none`: skip all; `one`: merge all into the next tick that is on
    time; `all`: execute each, but no more than the newest `catch_up_limit`."""
    catch_up_limit: int = Field(default=3, ge=1, le=10)
    windows: DailyWindows = ()
    """Daily time windows in which the schedule's retunes may start, such as `22:00-06:00`; if empty, they may start at
    any time. Windows of the project and the operator apply in addition."""
    planned_gpu_hours: float | None = Field(default=None, gt=0, le=1e9)
    """Length in hours × GPUs of the training run that will use each recommendation. It tells how much a faster
    configuration saves; without it, no saving is calculated."""
    likely_gain: float | None = Field(default=None, gt=0, le=10)
    """Expected speed-up of a retune if no speed-up has been measured; 0.05 means 5 %. Retunes whose expected saving
    does not cover their cost are skipped."""
    max_gpu_seconds: float | None = Field(default=None, gt=0)
    """Maximum GPU-seconds (seconds × ranks) of one retune; a retune that exceeds it is stopped."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.trigger is Trigger.CRON and self.cron is None:
            raise ValueError("cron (None) is required with trigger cron; write one such as '0 3 * * 0'")
        if self.trigger not in _TAKES_CRON and self.cron is not None:
            raise ValueError(f"cron ({self.cron}) does nothing with trigger {self.trigger.value}; leave it out")
        if self.catch_up is CatchUp.ALL and self.overlap is Overlap.SKIP:
            raise ValueError(
                "catch_up (all) needs overlap queue: with skip, every tick but the first would be left out again"
            )
        return self


class Tick(Schema):
    """Tick (planned or manual execution) of a retuning schedule, with its state."""

    at: datetime
    """Time at which the tick (execution of the schedule) was due. If a person requested it, the time of the request."""
    kind: TickKind
    state: TickState
    merged_ticks: int = 1
    """Number of ticks merged into this one, itself included: 1, and one more for each missed tick before it."""
    targets: int = 0
    """Number of recommendations whose retune (repeated measurement) the tick requested."""
    reason: str | None = None


class Schedule(ScheduleSpec):
    """Retuning schedule as stored, with its recent ticks."""

    schedule_id: str
    project_id: str
    is_paused: bool
    next_tick_at: datetime | None = None
    """Time of the next tick (planned execution). None if the schedule is paused, or if its trigger has no planned
    times."""
    last_ticks: tuple[Tick, ...] = ()
    """Newest five ticks of the schedule, newest first."""
    created_at: datetime
    updated_at: datetime


class SchedulePage(Schema):
    """Page of retuning schedules, newest first."""

    schedules: tuple[Schedule, ...]
    next_page_token: str | None = None


class TickPage(Schema):
    """Page of a schedule's ticks (planned or manual executions), newest first."""

    ticks: tuple[Tick, ...]
    next_page_token: str | None = None
