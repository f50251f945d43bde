"""Retune: one recommendation measured again, with its cost and outcome."""

from datetime import datetime
from enum import StrEnum

from pydantic import Field, field_validator

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.machines.fingerprints import FieldChange
from shardtune.api_schemas.times import check_windows, check_zone
from shardtune.api_schemas.training.workload import Workload


class RetuneCause(StrEnum):
    """Reason to measure a recommendation again."""

    FINGERPRINT = "fingerprint"
    """A change of hardware or software."""
    SCHEDULE = "schedule"
    DRIFT = "drift"
    """A canary that found the configuration slower than it was."""
    MANUAL = "manual"
    """The request of a person."""


class RetuneState(StrEnum):
    """State of a retune: `queued → running → ended`; a start for which no worker is free goes back to `queued`."""

    QUEUED = "queued"
    RUNNING = "running"
    ENDED = "ended"


OPEN_RETUNE_STATES = (RetuneState.QUEUED, RetuneState.RUNNING)


class RetuneOutcome(StrEnum):
    """Outcome of a retune."""

    KEPT = "kept"
    """The incumbent is still the best known, and was measured on the present fingerprint."""
    REPLACED = "replaced"
    """Another configuration was confirmed to be faster; whether it is recommended depends on approval."""
    INCONCLUSIVE = "inconclusive"
    FAILED = "failed"
    SKIPPED = "skipped"
    """The retune was not started, or was stopped, because it is not worth its cost or is not wanted."""


class Gain(Schema):
    """Measured speed of the new best over the incumbent, as a ratio, with its 95 % interval."""

    value: float
    ci95: tuple[float, float]


class Retune(Schema):
    """Retune as stored."""

    retune_id: str
    project_id: str
    target_key: str
    """Key of the tuning target whose recommendation is measured again."""
    cause: RetuneCause
    model: str | None = None
    """Name of the model of the answer in question; None: nothing is recommended for the tuning target any more."""
    workload: Workload | None = None
    """Workload of the answer in question."""
    changes: tuple[FieldChange, ...] = ()
    """Changes of hardware and software since the measurement: field, old and new value."""
    schedule_id: str | None = None
    state: RetuneState
    outcome: RetuneOutcome | None = None
    reason: str | None = None
    """Reason why it waits, or why it ended with this outcome, in words."""
    challenge_study_id: str | None = None
    """Study with validation runs of the incumbent against few challengers."""
    search_study_id: str | None = None
    """Study of the wide search, where the challenge was inconclusive."""
    gpu_seconds: float
    """GPU-seconds so far: seconds × ranks of every ended attempt of its studies."""
    planned_gpu_seconds: float | None = None
    """Declared length of the training run that the answer is for; None: not declared, and no saving is claimed."""
    expected_saving_gpu_seconds: float | None = None
    """Fraction of time that the measured gain saves × the declared run; 0 where the incumbent was kept. None: not
    known."""
    price: float | None = None
    """Price of `gpu_seconds` in the operator's currency; None: no price is set."""
    gain: Gain | None = None
    not_before: datetime
    created_at: datetime
    started_at: datetime | None = None
    ended_at: datetime | None = None

    @property
    def changed_fields(self) -> tuple[str, ...]:
        """Names of the changed fields."""
        return tuple(change.field for change in self.changes)


class RetunePage(Schema):
    """Retunes, newest first."""

    retunes: tuple[Retune, ...]
    next_page_token: str | None = None


class PlannedRun(Schema):
    """Training run that a best configuration is for."""

    planned_gpu_hours: float | None = Field(default=None, gt=0, le=1e9)
    """Declared length in hours × GPUs. None: not declared, and no saving of a retune is claimed."""


class RetunePolicy(Schema):
    """Limits of a project's automatic retuning. The operator's limits for the fleet apply as well."""

    gpu_seconds_per_day: float | None = Field(default=None, ge=0)
    """Seconds × ranks that retunes and canaries may use between two midnights of `timezone`. None: no limit of the
    project's own."""
    timezone: str = Field(default="UTC", max_length=64)
    """IANA time zone of the day and of the windows."""
    windows: tuple[str, ...] = Field(default=(), max_length=24)
    """Windows in which retunes may start, such as `22:00-06:00`; empty: at any time."""
    on_fingerprint: bool = True
    """Whether a change of hardware or software starts retunes of the recommendations it made stale. False: only
    schedules do."""

    @field_validator("timezone")
    @classmethod
    def _check_timezone(cls, name: str) -> str:
        return check_zone("timezone", name)

    @field_validator("windows")
    @classmethod
    def _check_windows(cls, windows: tuple[str, ...]) -> tuple[str, ...]:
        return check_windows("windows", windows)
