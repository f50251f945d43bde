"""Schedules of retuning: when which recommendations are measured again, and what became of each tick."""

from datetime import datetime
from enum import StrEnum
from typing import Self

from pydantic import Field, field_validator, model_validator

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.names import ONE_LINE
from shardtune.api_schemas.times import check_windows, check_zone


class Trigger(StrEnum):
    """What makes a schedule run; besides, a person can (`:run`)."""

    CRON = "cron"
    FINGERPRINT = "fingerprint"
    """A change of hardware or software that makes a recommendation stale."""
    DRIFT = "drift"
    """A canary found it slower than it was. `cron` says when its canaries are sent; without it the operator's period does."""
    MANUAL = "manual"
    """Only a person."""


_TAKES_CRON = (Trigger.CRON, Trigger.DRIFT)


class Overlap(StrEnum):
    """A tick comes while retunes of the tick before are unfinished."""

    SKIP = "skip"
    QUEUE = "queue"
    """It runs when they have ended."""


class CatchUp(StrEnum):
    """What is done about missed ticks."""

    NONE = "none"
    ONE = "one"
    """One tick for all of them."""
    ALL = "all"
    """Each, the newest `catch_up_limit` of them."""


class TickKind(StrEnum):
    """Where a tick comes from: the clock, or a person."""

    CRON = "cron"
    MANUAL = "manual"


class TickState(StrEnum):
    """What became of a tick."""

    QUEUED = "queued"
    STARTED = "started"
    SKIPPED = "skipped"
    MISSED = "missed"


class Cases(Schema):
    """Which recommendations of the project; without any field, all of them."""

    target_keys: tuple[str, ...] = Field(default=(), max_length=500)
    """Exactly these."""
    model: str | None = Field(default=None, min_length=1, max_length=200)
    """Those for this model, by its name or its `model_type`."""

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if self.target_keys and self.model is not None:
            raise ValueError(f"model ({self.model}) cannot be given beside target_keys; leave one of them out")
        return self


class ScheduleSpec(Schema):
    """When recommendations are measured again, and what that may cost."""

    name: str = Field(min_length=1, max_length=100, pattern=ONE_LINE)
    trigger: Trigger
    cron: str | None = Field(default=None, max_length=100)
    """Five fields: minute, hour, day of month, month, day of week. Needed for trigger `cron`; for `drift`, when canaries are
    sent; for no other."""
    timezone: str = Field(default="UTC", max_length=64)
    """IANA name; of `cron` and of `windows`."""
    cases: Cases = Cases()
    overlap: Overlap = Overlap.SKIP
    """A tick comes while retunes of the tick before are unfinished: leave it out, or run it when they have ended."""
    misfire_grace_s: float = Field(default=300, ge=1, le=7 * 86_400)
    """A tick the service notices later than this is a missed one."""
    catch_up: CatchUp = CatchUp.ONE
    """Missed ticks: none is made up for; one for all of them; or each, the newest `catch_up_limit` of them."""
    catch_up_limit: int = Field(default=3, ge=1, le=10)
    windows: tuple[str, ...] = Field(default=(), max_length=24)
    """When its retunes may start, such as `22:00-06:00`; empty: at any time. Those of project and fleet hold besides."""
    planned_gpu_hours: float | None = Field(default=None, gt=0, le=1e9)
    """Hours × GPUs of the training run that each of its cases is for. Without it no saving is claimed."""
    likely_gain: float | None = Field(default=None, gt=0, le=10)
    """Gain in speed to reckon with where none is measured, such as 0.05: a retune that could not earn its cost with it is skipped."""
    max_gpu_seconds: float | None = Field(default=None, gt=0)
    """Seconds × ranks one retune may use; beyond, it is stopped."""

    @field_validator("timezone")
    @classmethod
    def _known(cls, name: str) -> str:
        return check_zone("timezone", name)

    @field_validator("windows")
    @classmethod
    def _readable(cls, windows: tuple[str, ...]) -> tuple[str, ...]:
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
    """One tick and what became of it."""

    at: datetime
    """When it was due; for a run by hand, when it was asked for."""
    kind: TickKind
    state: TickState
    stands_for: int = 1
    """Ticks this one accounts for: itself, and missed ones before it."""
    cases: int = 0
    """Recommendations it asked to be measured."""
    reason: str | None = None


class Schedule(ScheduleSpec):
    """A schedule as stored."""

    schedule_id: str
    project_id: str
    is_paused: bool
    next_tick_at: datetime | None = None
    """None: paused, or the trigger has no times."""
    last_ticks: tuple[Tick, ...] = ()
    """The newest five, newest first."""
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
