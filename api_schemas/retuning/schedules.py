"""Schedules of retuning and their ticks."""

from datetime import datetime
from enum import StrEnum
from typing import Self

from pydantic import Field, field_validator, model_validator

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.names import ONE_LINE
from shardtune.api_schemas.times import check_windows, check_zone


class Trigger(StrEnum):
    """Trigger of a schedule. A person can run a schedule as well (`:run`)."""

    CRON = "cron"
    FINGERPRINT = "fingerprint"
    """A change of hardware or software that makes a recommendation stale."""
    DRIFT = "drift"
    """A canary that found the configuration slower than it was. `cron` sets when canaries are sent; without it the
    operator's period does."""
    MANUAL = "manual"
    """A person alone."""


_TAKES_CRON = (Trigger.CRON, Trigger.DRIFT)


class Overlap(StrEnum):
    """Rule for a tick while retunes of the previous tick are unfinished."""

    SKIP = "skip"
    QUEUE = "queue"
    """The tick runs when the retunes have ended."""


class CatchUp(StrEnum):
    """Rule for missed ticks."""

    NONE = "none"
    MERGED = "one"
    """All missed ticks are merged into one."""
    ALL = "all"
    """Each missed tick runs, up to the newest `catch_up_limit` of them."""


class TickKind(StrEnum):
    """Origin of a tick: the clock, or a person."""

    CRON = "cron"
    MANUAL = "manual"


class TickState(StrEnum):
    """State of a tick."""

    QUEUED = "queued"
    STARTED = "started"
    SKIPPED = "skipped"
    MISSED = "missed"


class TargetSelection(Schema):
    """Selection of the project's recommendations; without any field, all of them."""

    target_keys: tuple[str, ...] = Field(default=(), max_length=500)
    """Keys of tuning targets: exactly these."""
    model: str | None = Field(default=None, min_length=1, max_length=200)
    """Model, by its name or its `model_type`: all recommendations for it."""

    @model_validator(mode="after")
    def _check_one_selection(self) -> Self:
        if self.target_keys and self.model is not None:
            raise ValueError(f"model ({self.model}) cannot be given beside target_keys; leave one of them out")
        return self


class ScheduleSpec(Schema):
    """Times at which recommendations are measured again, and limits of the cost."""

    name: str = Field(min_length=1, max_length=100, pattern=ONE_LINE)
    trigger: Trigger
    cron: str | None = Field(default=None, max_length=100)
    """Five fields: minute, hour, day of month, month, day of week. Required for trigger `cron`; for `drift` it sets
    when canaries are sent; rejected for any other."""
    timezone: str = Field(default="UTC", max_length=64)
    """IANA time zone of `cron` and of `windows`."""
    cases: TargetSelection = TargetSelection()
    overlap: Overlap = Overlap.SKIP
    """Rule for a tick while retunes of the previous tick are unfinished: skip it, or run it when they have ended."""
    misfire_grace_s: float = Field(default=300, ge=1, le=7 * 86_400)
    """Seconds after which a tick that the service notices late counts as missed."""
    catch_up: CatchUp = CatchUp.MERGED
    """Rule for missed ticks: `none` runs none of them; `one` merges them into the next on-time tick; `all` runs
    each, up to the newest `catch_up_limit`."""
    catch_up_limit: int = Field(default=3, ge=1, le=10)
    windows: tuple[str, ...] = Field(default=(), max_length=24)
    """Windows in which its retunes may start, such as `22:00-06:00`; empty: at any time. Windows of project and
    fleet apply as well."""
    planned_gpu_hours: float | None = Field(default=None, gt=0, le=1e9)
    """Hours × GPUs of the training run that each tuning target is for. Without it no saving is claimed."""
    likely_gain: float | None = Field(default=None, gt=0, le=10)
    """Expected speed-up where none is measured, such as 0.05. A retune that could not earn its cost with it is
    skipped."""
    max_gpu_seconds: float | None = Field(default=None, gt=0)
    """Seconds × ranks that one retune may use; beyond, it is stopped."""

    @field_validator("timezone")
    @classmethod
    def _check_timezone(cls, name: str) -> str:
        return check_zone("timezone", name)

    @field_validator("windows")
    @classmethod
    def _check_windows(cls, windows: tuple[str, ...]) -> tuple[str, ...]:
        return check_windows("windows", windows)

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
    """Tick of a schedule, and its state."""

    at: datetime
    """Time at which it was due; for a run by hand, when it was asked for."""
    kind: TickKind
    state: TickState
    stands_for: int = 1
    """Number of ticks merged into this one: itself, and missed ticks before it."""
    cases: int = 0
    """Number of recommendations that it asked to measure."""
    reason: str | None = None


class Schedule(ScheduleSpec):
    """Schedule as stored."""

    schedule_id: str
    project_id: str
    is_paused: bool
    next_tick_at: datetime | None = None
    """Time of the next tick; None: paused, or the trigger has no times."""
    last_ticks: tuple[Tick, ...] = ()
    """Newest five ticks, newest first."""
    created_at: datetime
    updated_at: datetime


class SchedulePage(Schema):
    """Schedules, newest first."""

    schedules: tuple[Schedule, ...]
    next_page_token: str | None = None


class TickPage(Schema):
    """Ticks, newest first."""

    ticks: tuple[Tick, ...]
    next_page_token: str | None = None
