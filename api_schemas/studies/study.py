"""Study as its user asks for it and reads it."""

from datetime import datetime
from enum import StrEnum
from typing import Literal

from pydantic import ConfigDict, Field, JsonValue, field_validator, model_validator

from shardtune.api_schemas.access.keys import DEFAULT_PROJECT
from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.machines.hardware import Cluster, ClusterChoice, Fingerprint
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.studies.system_studies import SystemStudy
from shardtune.api_schemas.studies.verdicts import AgainstDefault, OpenVerdict
from shardtune.api_schemas.training.models import EXAMPLE, ModelChoice, ModelSummary
from shardtune.api_schemas.training.search_space import SpaceLimits
from shardtune.api_schemas.training.workload import Precision, Workload, WorkloadRequest
from shardtune.api_schemas.trials.resume_check import ResumeCheck

FEWEST_PAIRS, MOST_PAIRS = 7, 100
"""Least number of pairs for a verdict (all of them won), and the most that one may use."""
DEFAULT_TRIALS, MOST_TRIALS = 40, 10_000
"""Number of trials of a search whose budget gives none, and the largest that a budget may give."""
MOST_WAIT_S = 30 * 86_400.0
"""Longest time that a study may wait for a worker."""


SamplerName = Literal["guided", "tpe", "gp", "random"]


class Objective(Schema):
    """Quantity that is maximised, and its constraints."""

    metric: Literal["tokens_per_s_per_gpu"] = "tokens_per_s_per_gpu"
    memory_headroom: float = Field(default=0.05, ge=0, lt=0.9)
    """Fraction of memory that a winner must leave free; a run that takes more is `over_limit`."""


class Budget(Schema):
    """Limits of a study: the first limit reached ends the search; the final comparison has its own."""

    max_trials: int | None = Field(default=None, ge=1, le=MOST_TRIALS)
    """Exact number of trials, unless the space is exhausted first. None: up to 40, ended early when further gain is
    unlikely."""
    max_gpu_seconds: float | None = Field(default=None, gt=0)
    """Seconds × ranks of all runs."""
    max_wall_seconds: float | None = Field(default=None, gt=0)
    """Seconds since the study could first run."""
    planned_gpu_hours: float | None = Field(default=None, gt=0, le=1e9, examples=[5000.0])
    """Hours × GPUs of the training run that the answer is for. With it, the search does not stop at an expected gain
    below 1 %, but once the next trial is expected to save less of these hours than it takes. Not allowed beside
    `max_trials`."""
    max_pairs: int = Field(default=24, ge=FEWEST_PAIRS, le=MOST_PAIRS)
    """Pairs of validation runs of challenger and baseline before the verdict may stay `undecided`. More find smaller
    gains."""
    repeat_disturbed: float = Field(default=0.5, ge=0, le=3)
    """Runs that may be repeated because other programs disturbed the machine, as a fraction of those that count; 0:
    none."""
    prune: bool = True
    """Whether to end a trial of the search within its warm-up once it is surely more than 10 % slower than the
    fastest so far. Its state is then `pruned`: the search learns from its speed, no answer rests on it."""
    resume_check: bool = True
    """Whether the winner must resume from a checkpoint before it becomes the answer: it trains, saves a checkpoint
    and continues from it in new processes (seconds, and disk for 16 bytes per parameter)."""

    profile: bool = False
    """Whether to run the winner and its opponent once more each after the verdict, some steps under torch's
    profiler: `GET /v1/studies/{id}/trials/{n}/diagnosis`. Each takes about as long as a trial, and the answer does
    not wait for it."""

    @model_validator(mode="after")
    def _one_end(self) -> "Budget":
        if self.planned_gpu_hours is not None and self.max_trials is not None:
            raise ValueError(
                f"planned_gpu_hours ({self.planned_gpu_hours:g}) says when further trials no longer pay, and max_trials "
                f"({self.max_trials}) how many there are: leave one out"
            )
        return self

    @property
    def most_trials(self) -> int:
        """Number of trials after which the search ends at the latest."""
        return self.max_trials or DEFAULT_TRIALS


class StudyRequest(Schema):
    """Request for a study; also the content of a study file."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"model": EXAMPLE, "workload": {"sequence_length": 128, "global_batch": 8}, "cluster": "local"}
            ]
        }
    )

    model: ModelChoice
    """Model: a preset's name, a `config.json`, or code of your own that the worker's owner allows."""
    workload: WorkloadRequest
    cluster: ClusterChoice = "local"
    """Cluster in full, its short form (`8xh100`, `4x8xa100-80gb`), or `local`: the resources of the only registered
    worker."""
    objective: Objective = Objective()
    budget: Budget = Budget()
    baseline: TrialConfig | dict[str, JsonValue] | None = None
    """Configuration that the user runs today: one of ours, or an unchanged DeepSpeed JSON, Accelerate configuration
    or TrainingArguments of transformers (files they name must be replaced by their content)."""
    space: SpaceLimits = SpaceLimits()
    sampler: SamplerName = "guided"
    """Sampler that proposes the trials: `guided` uses predictions and the measurements of this study, `tpe` and `gp`
    are Optuna's, `random` draws each knob. Where nothing can be predicted, `guided` is `tpe`."""
    seed: int = Field(default=0, ge=0, lt=2**31)
    """Seed of the sampler."""
    checkpoint_every_s: float = Field(default=1800.0, ge=1, le=1e9)
    """Seconds between two checkpoints of the training that the answer is for: the resume check reports the fraction
    of its time that saving takes."""
    wait_for_worker_s: float | None = Field(default=None, gt=0, le=MOST_WAIT_S)
    """Seconds to wait for a worker where none has the cluster (`GET /v1/demand` shows the demand); then the study
    fails. None: such a study is rejected."""

    @field_validator("baseline", mode="before")
    @classmethod
    def _no_path(cls, baseline: object) -> object:
        if isinstance(baseline, str):
            raise ValueError(
                f"baseline ({baseline!r:.200}) must be an object: a configuration, or the content of a DeepSpeed, Accelerate or "
                "TrainingArguments file; send that, since paths (.json, .yaml) are read by the command line only"
            )
        return baseline

    def with_precision(self, precision: Precision) -> "StudySpec":
        """Return the specification, once the precision is decided."""
        fields = {name: getattr(self, name) for name in StudyRequest.model_fields}
        return StudySpec(**fields | {"workload": self.workload.with_precision(precision)})


class StudySpec(StudyRequest):
    """Complete specification of a study: a request whose precision is decided."""

    workload: Workload


class StudyState(StrEnum):
    """State of a study: `waiting → running ⇄ paused → complete | cancelled | failed`; a complete or failed study
    that is extended runs again."""

    WAITING = "waiting"
    """The study waits for a worker that has its cluster."""
    RUNNING = "running"
    PAUSED = "paused"
    COMPLETE = "complete"
    CANCELLED = "cancelled"
    FAILED = "failed"

    @property
    def is_open(self) -> bool:
        """Whether the study has not ended: it runs, or waits for a worker or to be resumed."""
        return self in OPEN_STUDY_STATES


OPEN_STUDY_STATES = (StudyState.WAITING, StudyState.RUNNING, StudyState.PAUSED)
ACTIVE_STUDY_STATES = (StudyState.WAITING, StudyState.RUNNING)
"""States in which a study needs a worker; they count against quotas, and as demand."""


class StudyPhase(StrEnum):
    """Phase of a running study."""

    MODEL_SUMMARY = "model_summary"
    SEARCH = "search"
    FINAL_COMPARISON = "final_comparison"
    """Validation runs of the fastest trials and of the baseline."""
    DONE = "done"


class StudyPurpose(StrEnum):
    """Purpose of a study: `retune` and `canary` are the service's own, and run on workers that no user's study
    needs."""

    USER = "user"
    RETUNE = "retune"
    CANARY = "canary"


class Contender(Schema):
    """Measured configuration, as shown to a user."""

    trial_number: int
    config: TrialConfig
    description: str
    """Strategy in words, such as `FSDP2, HSDP 2×8, full checkpointing, micro batch 4`."""
    tokens_per_s_per_gpu: float
    """Median of its validation runs where it has them, else the speed of its search run."""
    spread: tuple[float, float] | None = None
    """Slowest and fastest of its validation runs, in tokens_per_s_per_gpu; None for fewer than two."""
    peak_allocated_gib: float | None
    peak_reserved_gib: float | None
    mfu: float | None = None
    runs: int
    """Number of runs behind the figures."""


class Speedup(Schema):
    """Median of the paired ratios challenger / baseline, with its 95 % interval (`tuner.verdict.paired_test`)."""

    value: float
    ci95: tuple[float, float]
    pairs: int
    ratios: tuple[float, ...] = ()
    """Ratio of each pair, in the order they were run."""


class Verdict(StrEnum):
    """Verdict of the pairs on the candidate."""

    CONFIRMED = "confirmed"
    """The candidate is faster: the lower end of the interval is above 1."""
    NOT_FASTER = "not_faster"
    """The candidate is not faster by a gain worth having (`tuner.verdict.undecided`), or there was nothing to
    compare."""
    UNDECIDED = "undecided"
    """The candidate may be faster: the pairs were too few, or lie too far apart."""


class FinalComparison(Schema):
    """Runs and costs behind the verdict."""

    candidates: tuple[int, ...]
    """Trials that were run again, fastest by their search runs first."""
    pairs: int
    """Number of pairs of challenger and baseline."""
    runs: int
    """Number of validation runs, including those that failed or did not count."""
    gpu_seconds: float
    ratios: tuple[float, ...] = ()
    """Ratio challenger / baseline of each pair, also where they are too few for an interval."""


class StudyResult(Schema):
    """Answer of a study. If the user gave a baseline, `best` is the baseline unless another was confirmed to be
    faster. Without one, `best` is the faster of candidate and fastest default in the pairs, and `verdict` tells how
    sure that is."""

    best: Contender
    baseline: Contender
    candidate: Contender | None = None
    """Challenger, where it is not the answer."""
    speedup: Speedup | None
    """Speed-up; None when there was nothing to compare (a single feasible configuration), or too few pairs for an
    interval."""
    verdict: Verdict
    undecided: OpenVerdict | None = None
    """Pairs that would settle the verdict; None unless it is `undecided`."""
    against_defaults: tuple[AgainstDefault, ...] = ()
    """Answer against each documented default that ran, except itself."""
    final_comparison: FinalComparison | None = None
    """Final comparison; None when there was nothing to compare."""
    resume_check: ResumeCheck | None = None
    """Resume check of `best`; None when the budget leaves it out, or there was nothing to compare."""
    notes: tuple[str, ...] = ()
    """Notes for a reader, such as a baseline that did not fit and was replaced."""


class Study(Schema):
    """Study as stored."""

    study_id: str
    project_id: str = DEFAULT_PROJECT
    state: StudyState
    phase: StudyPhase
    spec: StudySpec
    cluster: Cluster
    """Cluster of the spec with `local` resolved."""
    model_summary: ModelSummary | None = None
    """Summary of the built model; None until a worker has made it."""
    fingerprint: Fingerprint | None = None
    trials: dict[str, int]
    """Number of trials by state."""
    rejected: int
    """Number of configurations that the memory gate rejected; these are not trials."""
    gpu_seconds: float
    final_comparison: int = 0
    """Number of the final comparison that counts. It grows when one begins, and when a search continues after one."""
    final_comparison_runs: int | None = None
    """Most validation runs that the final comparison may take; None before there is one."""
    created_at: datetime
    started_at: datetime | None = None
    """Time at which it could first run; None: it still waits for a worker."""
    finished_at: datetime | None = None
    deleted_at: datetime | None = None
    """Time of its deletion, since which no list shows it; None: it was not deleted."""
    best_so_far: Contender | None = None
    """Fastest configuration by search runs; not yet confirmed."""
    result: StudyResult | None = None
    """Result. It stays while an extended study runs, until the renewed result replaces it."""
    reason: str | None = None
    """Reason why the search stopped, or why the study failed."""
    system_study: SystemStudy | None = None
    """Task of the study, where the service itself started it; None: a user did."""
    warnings: tuple[str, ...] = ()
    """Notes on the request: the precision that was chosen and why, or that the device only emulates the stated one's
    dtype; keys of the given baseline that are unknown or have no effect in a trial, and values assumed for what it
    leaves open."""


class StudyPage(Schema):
    """Studies in the order asked for."""

    studies: tuple[Study, ...]
    next_page_token: str | None = None
    """Token of the next page; None on the last page."""
