"""Trials, their runs and attempts, as read by a user.

A trial is one configuration; a run is one execution of it (one for the search, more for confirmation);
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
    """State of a trial; that of a run uses the same words."""

    WAITING = "waiting"
    RUNNING = "running"
    COMPLETE = "complete"
    INFEASIBLE = "infeasible"
    PRUNED = "pruned"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_open(self) -> bool:
        """It has not ended; a run that failed for the platform's fault waits again."""
        return self in OPEN_TRIAL_STATES

    @property
    def is_feasible(self) -> bool:
        """It ran as it was to, and its speed is known: of a pruned one roughly."""
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
    """Who proposed a trial."""

    BASELINE = "baseline"
    DEFAULT = "default"
    """A backend's documented default."""
    CHALLENGER = "challenger"
    """A runner-up of an earlier study, or a favourite of the predictor, in a retune."""
    SAMPLER = "sampler"


class TrialReason(Schema):
    """Why the guided sampler chose a configuration, as it stood then."""

    expected_gain: float
    """Expected improvement over the fastest trial so far, as a share of its speed; 0.02 is 2 %."""
    probability_faster: float
    """That it is faster than the fastest so far."""
    probability_infeasible: float
    """That it does not fit, or fails as trials like it did."""
    tokens_per_s_per_gpu: float
    """Expected, with what this study's trials have taught about the prediction."""
    low_tokens_per_s_per_gpu: float
    high_tokens_per_s_per_gpu: float
    """Interval of 90 %."""
    tests: str
    """In which knobs it differs from the fastest so far; before these, the axes over which it is the first to be split."""
    expected_gpu_seconds: float | None = Field(default=None, examples=[42.0])
    """Seconds × ranks that the trial is expected to take; None in studies of older versions."""


class RunPurpose(StrEnum):
    """What a run is for."""

    MODEL_SUMMARY = "model_summary"
    """Of a study, not of a trial: count what the model is made of."""
    SEARCH = "search"
    VALIDATION = "validation"
    """A validation run of a final comparison."""
    RESUME_CHECK = "resume_check"
    """Of the winner, from a checkpoint in new processes."""
    TRACE = "trace"
    """Under the profiler, once the study has ended: nothing of the study follows from it."""


class AttemptEnd(StrEnum):
    """How an attempt ended: well, by a failure (the words of `FailureKind`), or for no fault of its own."""

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
    """Handed back by its worker: nobody's fault, and no try used up."""
    CANCELLED = "cancelled"


class Attempt(Schema):
    """Who ran what, and why it ended."""

    attempt: int
    worker: str
    started_at: datetime
    finished_at: datetime | None
    end: AttemptEnd | None
    """None while it runs."""
    gpu_seconds: float | None


class Run(Schema):
    """One execution of a trial."""

    run_id: str
    purpose: RunPurpose
    """Never `profile`, which is a run of no trial."""
    final_comparison: int | None = None
    """Of a validation run: the number of its final comparison. Where it is not the study's, the run does not count any more."""
    block: int | None = None
    """Of a final comparison; its runs are made one after the other."""
    state: TrialState
    measurement: Measurement | None = None
    resume_check: ResumeMeasurement | None = None
    failure: Failure | None = None
    log_tail: str | None = None
    progress: Progress | None = None
    attempts: tuple[Attempt, ...] = ()


class Trial(Schema):
    """One configuration of a study and what became of it."""

    number: int
    state: TrialState
    origin: TrialOrigin
    config: TrialConfig
    description: str
    failure: Failure | None = None
    """The reason of an infeasible or failed trial."""
    tokens_per_s_per_gpu: float | None = None
    peak_allocated_gib: float | None = None
    peak_reserved_gib: float | None = None
    prediction: TrialPrediction | None = None
    """Made before it ran; None for trials older than the predictor."""
    reason: TrialReason | None = None
    """Why the guided sampler chose it; None of seeds, and of trials that another sampler proposed."""
    predicted_over_measured_memory: float | None = None
    """Predicted peak over the measured one; None while either is unknown."""
    predicted_over_measured_speed: float | None = None
    runs: tuple[Run, ...] = ()


class Rejection(Schema):
    """A configuration the memory gate rejected before any GPU time was spent."""

    config: TrialConfig
    needed_gib: float
    """What one rank would hold at the least (99 %), by the predictor and its error on this fingerprint."""
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
