"""A retune: one recommendation measured again, its cost, and what came of it."""

from datetime import datetime
from enum import StrEnum

from pydantic import Field, field_validator

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.machines.fingerprints import FieldChange
from shardtune.api_schemas.times import check_windows, check_zone
from shardtune.api_schemas.training.workload import Workload


class RetuneCause(StrEnum):
    """Why a recommendation is measured again."""

    FINGERPRINT = "fingerprint"
    """Hardware or software changed."""
    SCHEDULE = "schedule"
    DRIFT = "drift"
    """A canary found it slower than it was."""
    MANUAL = "manual"
    """A person asked."""


class RetuneState(StrEnum):
    """`queued → running → ended`; a start that nobody can serve yet goes back to `queued`."""

    QUEUED = "queued"
    RUNNING = "running"
    ENDED = "ended"


OPEN_RETUNE_STATES = (RetuneState.QUEUED, RetuneState.RUNNING)


class RetuneOutcome(StrEnum):
    """How a retune ended."""

    KEPT = "kept"
    """The incumbent is still the best known, and was measured on the present fingerprint."""
    REPLACED = "replaced"
    """Another configuration was confirmed to be faster; whether it is served is a matter of consent."""
    INCONCLUSIVE = "inconclusive"
    FAILED = "failed"
    SKIPPED = "skipped"
    """It was not begun, or was stopped, because it is not worth its cost or is not wanted."""


class Gain(Schema):
    """Measured speed of the new best over the incumbent, as a ratio, with its 95 % interval."""

    value: float
    ci95: tuple[float, float]


class Retune(Schema):
    """A retune as stored."""

    retune_id: str
    project_id: str
    target_key: str
    """The case: key of the recommendation that is in question."""
    cause: RetuneCause
    model: str | None = None
    """Name of the model of the answer in question; None: nothing is served for the case any more."""
    workload: Workload | None = None
    """Of the same."""
    changes: tuple[FieldChange, ...] = ()
    """Of hardware and software against what was measured on: field, old and new value."""
    schedule_id: str | None = None
    state: RetuneState
    outcome: RetuneOutcome | None = None
    reason: str | None = None
    """Why it waits, or why it ended as it did, in words."""
    challenge_study_id: str | None = None
    """Validation runs of the incumbent against few challengers."""
    search_study_id: str | None = None
    """The wide search, where the challenge did not settle it."""
    gpu_seconds: float
    """Spent so far: seconds × ranks of every ended attempt of its studies."""
    planned_gpu_seconds: float | None = None
    """Declared length of the training run that the answer is for; None: not declared, and no saving is claimed."""
    expected_saving_gpu_seconds: float | None = None
    """Share of time the measured gain saves × the declared run; 0 where the incumbent was kept. None: not known."""
    price: float | None = None
    """Of `gpu_seconds`, in the operator's currency; None: no price is set."""
    gain: Gain | None = None
    not_before: datetime
    created_at: datetime
    started_at: datetime | None = None
    ended_at: datetime | None = None

    @property
    def changed_fields(self) -> tuple[str, ...]:
        """Names of what changed."""
        return tuple(change.field for change in self.changes)


class RetunePage(Schema):
    """Retunes, newest first."""

    retunes: tuple[Retune, ...]
    next_page_token: str | None = None


class PlannedRun(Schema):
    """The training run a best configuration is for."""

    planned_gpu_hours: float | None = Field(default=None, gt=0, le=1e9)
    """Hours × GPUs. None: not declared, and no saving of a retune is claimed."""


class RetunePolicy(Schema):
    """What a project lets retuning do by itself; the operator's limits for the fleet hold besides."""

    gpu_seconds_per_day: float | None = Field(default=None, ge=0)
    """Seconds × ranks that retunes and canaries may use between two midnights of `timezone`. None: no limit of its own."""
    timezone: str = Field(default="UTC", max_length=64)
    """IANA name; of the day and of the windows."""
    windows: tuple[str, ...] = Field(default=(), max_length=24)
    """When retunes may start, such as `22:00-06:00`; empty: at any time."""
    on_fingerprint: bool = True
    """A change of hardware or software has the recommendations it made stale measured again. False: only where a schedule says so."""

    @field_validator("timezone")
    @classmethod
    def _known(cls, name: str) -> str:
        return check_zone("timezone", name)

    @field_validator("windows")
    @classmethod
    def _readable(cls, windows: tuple[str, ...]) -> tuple[str, ...]:
        return check_windows("windows", windows)
