"""Schemas of trials, their runs and attempts. A trial is one configuration; a run is one execution of it (one for the
search, more for validation); an attempt is one lease of a run to a worker."""

from collections.abc import Iterable
from datetime import datetime
from enum import StrEnum
from typing import Literal, NamedTuple

from pydantic import Field

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.trials.failures import Failure
from shardtune.api_schemas.trials.measurements import Measurement
from shardtune.api_schemas.trials.predictions import TrialPrediction
from shardtune.api_schemas.trials.progress import Progress
from shardtune.api_schemas.trials.rehearsals import RehearsalReport
from shardtune.api_schemas.trials.resume_check import ResumeMeasurement


class TrialState(StrEnum):
    """State of a trial or of a run."""

    WAITING = "waiting"
    RUNNING = "running"
    COMPLETE = "complete"
    INFEASIBLE = "infeasible"
    PRUNED = "pruned"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_open(self) -> bool:
        """Whether the trial has not ended. This includes a trial that waits for a run to be repeated that failed
        because of the platform."""
        return self in OPEN_TRIAL_STATES

    @property
    def is_feasible(self) -> bool:
        """Whether the trial ran successfully, so that its speed is known. The speed of a pruned trial is known only
        roughly."""
        return self in FEASIBLE_STATES


OPEN_TRIAL_STATES = (TrialState.WAITING, TrialState.RUNNING)
FEASIBLE_STATES = (TrialState.COMPLETE, TrialState.PRUNED)

ALLOWED_MOVES: dict[TrialState, frozenset[TrialState]] = {
    TrialState.WAITING: frozenset({TrialState.RUNNING, TrialState.CANCELLED}),
    TrialState.RUNNING: frozenset(set(TrialState) - {TrialState.RUNNING}),
    # A later majority can show that an early trial trained something else.
    TrialState.COMPLETE: frozenset({TrialState.INFEASIBLE}),
    TrialState.INFEASIBLE: frozenset(),
    TrialState.PRUNED: frozenset(),
    TrialState.FAILED: frozenset(),
    TrialState.CANCELLED: frozenset(),
}


class TrialOrigin(StrEnum):
    """Origin of a trial's configuration."""

    BASELINE = "baseline"
    DEFAULT = "default"
    """Trial of the documented default configuration of a backend."""
    CHALLENGER = "challenger"
    """Trial of a retune: a runner-up of an earlier study, or a configuration that is predicted to be fast."""
    SAMPLER = "sampler"


SEED_ORIGINS = (TrialOrigin.BASELINE, TrialOrigin.DEFAULT)
"""Origins of the trials with which a study begins, before its search chooses any."""


_PARTS, _INSTEAD = "; ", " instead of "


class KnobChange(NamedTuple):
    """Change of one knob or of the backend, in which a trial differs from the fastest one before it.

    `TrialReason.tests` states changes as text in a fixed form: `micro_batch 4 instead of 1; compile True instead of False`.
    """

    knob: str
    """Name of the knob; empty if the change is one of backends."""
    value: str
    previous: str
    """Value in the fastest trial so far."""

    def __str__(self) -> str:
        return f"{self.knob} {self.value}{_INSTEAD}{self.previous}".lstrip()


def changes_text(parts: Iterable[KnobChange | str]) -> str:
    """Text of `TrialReason.tests`: changes in their fixed form, and remarks."""
    return _PARTS.join(map(str, parts))


def changes_in(text: str) -> list[KnobChange | str]:
    """Read the text of `TrialReason.tests`; a part that states no change is a remark, which stays as it is."""
    parts: list[KnobChange | str] = []
    for part in text.split(_PARTS):
        changed, separator, previous = part.partition(_INSTEAD)
        knob, _, value = changed.rpartition(" ")
        parts.append(KnobChange(knob, value, previous) if separator else part)
    return parts


class TrialReason(Schema):
    """Reason why the guided sampler chose the configuration of a trial: what it expected of the configuration at that
    time."""

    expected_gain: float
    """Expected improvement over the fastest trial so far, as a fraction of that trial's speed; 0.02 is 2 %."""
    probability_faster: float
    """Probability that the configuration is faster than the fastest trial so far."""
    probability_infeasible: float
    """Probability that the configuration does not fit into memory, or that it fails as similar trials did."""
    tokens_per_s_per_gpu: float
    """Expected speed in tokens per second and GPU: the prediction, corrected by what this study's trials measured."""
    low_tokens_per_s_per_gpu: float
    high_tokens_per_s_per_gpu: float
    """Upper end of the 90 % interval of the expected speed, in tokens per second and GPU; `low_tokens_per_s_per_gpu` is
    the lower end."""
    tests: str
    """Text that names the knobs in which the configuration differs from the fastest trial so far. If no trial was split
    over one of its parallel axes before, the text begins with that axis."""
    expected_gpu_seconds: float | None = Field(default=None, examples=[42.0])
    """GPU-seconds (seconds × ranks) that the trial was expected to take; None in studies of older releases."""
    compared_trial: int | None = Field(default=None, examples=[2])
    """Number of the trial that `tests` compares the configuration with: the fastest trial so far, as the sampler estimates
    it. None before any trial is complete, and in studies of older releases."""


class RunPurpose(StrEnum):
    """Purpose of a run (one execution of a configuration)."""

    MODEL_SUMMARY = "model_summary"
    """Run that counts the parameters and FLOPs of the study's model. It belongs to no trial."""
    SEARCH = "search"
    VALIDATION = "validation"
    """Validation run of a final comparison (paired runs that decide)."""
    RESUME_CHECK = "resume_check"
    """Resume check of the best configuration: it saves a checkpoint, and new processes continue from it."""
    RECIPE = "recipe"
    """Run that trains with another recipe (precision or optimizer) which the study was asked to consider, or with the
    workload's own recipe for comparison."""
    REHEARSAL = "rehearsal"
    """Rehearsal of a configuration that is projected to the study's target: it is built and stepped with fake tensors
    at the target's number of ranks, and nothing is timed."""
    SUSTAINED = "sustained"
    """Long run of the best configuration after the verdict, which shows its speed after minutes of load. It never changes
    the verdict."""
    TRACE = "trace"
    """Run under the profiler after the end of the study, with no effect on its result."""


OPTIONAL_PURPOSES = (RunPurpose.SUSTAINED, RunPurpose.RECIPE, RunPurpose.REHEARSAL)
"""Purposes of the runs that follow a known answer and never change it. The answer does not wait for them."""


class AttemptEnd(StrEnum):
    """Reason why an attempt at a run ended: success, a failure (one of the values of `FailureKind`), or an end that is
    not the run's fault."""

    COMPLETE = "complete"
    OOM = "oom"
    OVER_LIMIT = "over_limit"
    ILLEGAL = "illegal"
    NUMERICS = "numerics"
    CRASH = "crash"
    RANK_LOST = "rank_lost"
    NO_PROGRESS = "no_progress"
    DEADLINE = "deadline"
    WORKER_LOST = "worker_lost"
    NODE_LOST = "node_lost"
    DEVICE = "device"
    SUSPECT = "suspect"
    DISTURBED = "disturbed"
    SETUP = "setup"
    RELEASED = "released"
    """The worker returned the run without having started it. This counts neither as a failure nor as a try."""
    PREEMPTED = "preempted"
    """The service took the worker from the run of a retune or canary, because a user's study needed it. This counts
    neither as a failure nor as a try."""
    CANCELLED = "cancelled"


class Attempt(Schema):
    """Attempt at a run: it begins when a worker leases the run, and ends with success, a failure or the loss of the
    lease."""

    attempt: int
    worker: str
    started_at: datetime
    finished_at: datetime | None
    end: AttemptEnd | None
    """Reason why the attempt ended; None while it runs."""
    failure_message: str | None = None
    """Description of the failure with which the attempt ended; None if it ended without one."""
    gpu_seconds: float | None


class Run(Schema):
    """Run of a trial: one execution of its configuration."""

    run_id: str
    purpose: RunPurpose
    """Purpose of the run; never `model_summary`, since such a run belongs to no trial."""
    final_comparison: int | None = None
    """Number of the final comparison (paired runs that decide) to which a validation run belongs, or after which a
    recipe run (with another precision or optimizer) was made. A run whose number differs from the study's current one
    no longer counts."""
    comparison_block: int | None = None
    """Number of the comparison block within the final comparison: runs with the same number were executed directly
    after each other."""
    recipe: str | None = Field(default=None, examples=["bf16-true"])
    """Name of the considered recipe (precision or optimizer) that a run of purpose `recipe` trains. If None, such a run
    trains the workload's own recipe."""
    is_whole_step: bool = False
    """Whether this validation run, which follows the study's verdict, timed whole steps. It checks step times that were
    extrapolated from steps with fewer micro batches, and takes no part in the comparison."""
    state: TrialState
    measurement: Measurement | None = None
    resume_check: ResumeMeasurement | None = None
    rehearsal: RehearsalReport | None = None
    """Results of the rehearsal, in which processes built the trial's configuration and stepped it with fake tensors,
    each as one rank of the study's target."""
    failure: Failure | None = None
    log_tail: str | None = None
    progress: Progress | None = None
    attempts: tuple[Attempt, ...] = ()


class Trial(Schema):
    """Trial of a study: one configuration with its runs and results."""

    number: int
    state: TrialState
    origin: TrialOrigin
    config: TrialConfig
    description: str
    failure: Failure | None = None
    """Failure of the trial, if infeasible or failed; otherwise None."""
    tokens_per_s_per_gpu: float | None = None
    peak_allocated_gib: float | None = None
    peak_reserved_gib: float | None = None
    prediction: TrialPrediction | None = None
    """Prediction made before the trial ran; None for trials of releases that made no predictions."""
    reason: TrialReason | None = None
    """Reason why the guided sampler chose the configuration; None for initial configurations and for trials proposed by
    another sampler."""
    predicted_over_measured_memory: float | None = None
    """Predicted peak memory divided by the measured one; None while either is unknown."""
    predicted_over_measured_speed: float | None = None
    runs: tuple[Run, ...] = ()


class Rejection(Schema):
    """Configuration that was predicted not to fit, so that the memory gate rejected it before it took any GPU time."""

    config: TrialConfig
    needed_gib: float
    """Memory in GiB that one rank would need at least, with a probability of 99 %. It is calculated from the prediction
    and from the errors of earlier predictions on this fingerprint (hardware and software). If offloading needs too much
    host memory, the memory that all ranks of a node would need of it; `reason` says so."""
    available_gib: float
    memory_of: Literal["rank", "host"] | None = Field(default=None, examples=["rank"])
    """Owner of the memory that is too small: each rank, or a host, whose ranks share it. None if an earlier release rejected
    the configuration."""
    reason: str
    """Description of the configuration, then the memory that it needs and the largest terms of it."""


class TrialPage(Schema):
    """Page of trials, sorted by number."""

    trials: tuple[Trial, ...]
    next_page_token: str | None = None


class RejectionPage(Schema):
    """Page of rejected configurations, in the order of their rejection."""

    rejections: tuple[Rejection, ...]
    next_page_token: str | None = None
