"""Trials, their runs and attempts, as read by a user.

A trial is one configuration; a run is one execution of it (one for the search, more for validation);
an attempt is one lease of a run.
"""

from datetime import datetime
from enum import StrEnum

from pydantic import Field

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.trials.failures import Failure
from shardtune.api_schemas.trials.measurements import Measurement, Progress
from shardtune.api_schemas.trials.predictions import TrialPrediction
from shardtune.api_schemas.trials.resume_check import ResumeMeasurement


class TrialState(StrEnum):
    """State of a trial; runs use the same words."""

    WAITING = "waiting"
    RUNNING = "running"
    COMPLETE = "complete"
    INFEASIBLE = "infeasible"
    PRUNED = "pruned"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_open(self) -> bool:
        """Whether it has not ended; a run that failed for the platform's fault waits again."""
        return self in OPEN_TRIAL_STATES

    @property
    def is_feasible(self) -> bool:
        """Whether it ran as planned and its speed is known, roughly for a pruned one."""
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
    """Origin of a trial."""

    BASELINE = "baseline"
    DEFAULT = "default"
    """Documented default of a backend."""
    CHALLENGER = "challenger"
    """Runner-up of an earlier study, or a favourite of the predictor, in a retune."""
    SAMPLER = "sampler"


class TrialReason(Schema):
    """Reason why the guided sampler chose a configuration, with the figures of that time."""

    expected_gain: float
    """Expected improvement over the fastest trial so far, as a fraction of its speed; 0.02 is 2 %."""
    probability_faster: float
    """Probability that it is faster than the fastest so far."""
    probability_infeasible: float
    """Probability that it does not fit, or fails as trials like it did."""
    tokens_per_s_per_gpu: float
    """Expected speed: the prediction, corrected by this study's trials."""
    low_tokens_per_s_per_gpu: float
    high_tokens_per_s_per_gpu: float
    """Upper end of the 90 % interval; `low_tokens_per_s_per_gpu` is the lower."""
    tests: str
    """Knobs in which it differs from the fastest so far, preceded by the axes over which it is the first to be
    split."""
    expected_gpu_seconds: float | None = Field(default=None, examples=[42.0])
    """Expected seconds × ranks of the trial; None in studies of older versions."""


class RunPurpose(StrEnum):
    """Purpose of a run."""

    MODEL_SUMMARY = "model_summary"
    """Summary of the study's model; it belongs to no trial."""
    SEARCH = "search"
    VALIDATION = "validation"
    """Validation run of a final comparison."""
    RESUME_CHECK = "resume_check"
    """Resume check of the winner, from a checkpoint in new processes."""
    TRACE = "trace"
    """Run under the profiler, once the study has ended. It changes nothing of the study."""


class AttemptEnd(StrEnum):
    """End of an attempt: complete, a failure (the words of `FailureKind`), or an end for no fault of its own."""

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
    """Lease handed back by its worker: no failure, and no try used up."""
    CANCELLED = "cancelled"


class Attempt(Schema):
    """Attempt at a run, with its worker and its end."""

    attempt: int
    worker: str
    started_at: datetime
    finished_at: datetime | None
    end: AttemptEnd | None
    """End of the attempt; None while it runs."""
    gpu_seconds: float | None


class Run(Schema):
    """One execution of a trial."""

    run_id: str
    purpose: RunPurpose
    """Purpose; never `model_summary`, which is a run of no trial."""
    final_comparison: int | None = None
    """Number of the final comparison of a validation run. If it differs from the study's, the run does not count any
    more."""
    block: int | None = None
    """Comparison block in the final comparison; its runs are made right after each other."""
    state: TrialState
    measurement: Measurement | None = None
    resume_check: ResumeMeasurement | None = None
    failure: Failure | None = None
    log_tail: str | None = None
    progress: Progress | None = None
    attempts: tuple[Attempt, ...] = ()


class Trial(Schema):
    """Configuration of a study, with its runs and results."""

    number: int
    state: TrialState
    origin: TrialOrigin
    config: TrialConfig
    description: str
    failure: Failure | None = None
    """Failure of an infeasible or failed trial."""
    tokens_per_s_per_gpu: float | None = None
    peak_allocated_gib: float | None = None
    peak_reserved_gib: float | None = None
    prediction: TrialPrediction | None = None
    """Prediction made before it ran; None for trials older than the predictor."""
    reason: TrialReason | None = None
    """Reason why the guided sampler chose it; None for seeds, and for trials that another sampler proposed."""
    predicted_over_measured_memory: float | None = None
    """Predicted peak memory over the measured one; None while either is unknown."""
    predicted_over_measured_speed: float | None = None
    runs: tuple[Run, ...] = ()


class Rejection(Schema):
    """Configuration that the memory gate rejected before any GPU time was spent."""

    config: TrialConfig
    needed_gib: float
    """Least memory that one rank would hold (99 %), by the predictor and its error on this fingerprint."""
    available_gib: float
    reason: str


class TrialPage(Schema):
    """Trials by number."""

    trials: tuple[Trial, ...]
    next_page_token: str | None = None


class RejectionPage(Schema):
    """Rejected configurations in the order they were found."""

    rejections: tuple[Rejection, ...]
    next_page_token: str | None = None
