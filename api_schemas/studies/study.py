"""A study as its user asks for it and reads it."""

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
"""Pairs that a verdict needs at least (all of them won), and may use at most."""
DEFAULT_TRIALS, MOST_TRIALS = 40, 10_000
"""Trials of a search whose budget names no number, and the most that one may name."""
MOST_WAIT_S = 30 * 86_400.0
"""That a study may wait for a worker."""


SamplerName = Literal["guided", "tpe", "gp", "random"]


class Objective(Schema):
    """What is maximised, and what must hold."""

    metric: Literal["tokens_per_s_per_gpu"] = "tokens_per_s_per_gpu"
    memory_headroom: float = Field(default=0.05, ge=0, lt=0.9)
    """Share of memory a winner must leave free; a run that takes more is `over_limit`."""


class Budget(Schema):
    """What a study may spend: the first limit reached ends the search; final comparison has its own."""

    max_trials: int | None = Field(default=None, ge=1, le=MOST_TRIALS)
    """Exactly this many trials, unless the space is exhausted first. None: up to 40, ended early when further gain is unlikely."""
    max_gpu_seconds: float | None = Field(default=None, gt=0)
    """Seconds × ranks of all runs."""
    max_wall_seconds: float | None = Field(default=None, gt=0)
    """From the creation of the study."""
    planned_gpu_hours: float | None = Field(default=None, gt=0, le=1e9, examples=[5000.0])
    """Hours × GPUs of the training run that the answer is for: in place of a gain below 1 %, the search ends once its next trial is
    expected to save less of them than it takes. Not beside `max_trials`."""
    max_pairs: int = Field(default=24, ge=FEWEST_PAIRS, le=MOST_PAIRS)
    """Pairs of validation runs of challenger and baseline before the verdict may stay `undecided`. More find smaller gains."""
    repeat_disturbed: float = Field(default=0.5, ge=0, le=3)
    """Runs that may be repeated because other programs disturbed the machine meanwhile, as a share of those that count; 0: none."""
    prune: bool = True
    """A trial that the search chose ends within its warm-up once it is surely more than 10 % slower than the fastest so far: its
    state is `pruned`. The search learns from its speed, no answer rests on it."""
    resume_check: bool = True
    """Before it becomes the answer, the winner trains on, saves a checkpoint and goes on from it in new processes (seconds,
    and disk for 16 bytes per parameter)."""

    profile: bool = False
    """After the verdict, the winner and what it was held against run once more each, some steps of it under torch's profiler:
    `GET /v1/studies/{id}/trials/{n}/diagnosis`. Each takes about as long as a trial, and the answer does not wait for it."""

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
        """Trials after which its search ends at the latest."""
        return self.max_trials or DEFAULT_TRIALS


class StudyRequest(Schema):
    """What a user asks for; also the content of a study file."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"model": EXAMPLE, "workload": {"sequence_length": 128, "global_batch": 8}, "cluster": "local"}
            ]
        }
    )

    model: ModelChoice
    """A preset's name, a `config.json`, or code of your own that the worker's owner allows."""
    workload: WorkloadRequest
    cluster: ClusterChoice = "local"
    """A cluster, its short form (`8xh100`, `4x8xa100-80gb`), or `local`: whatever the only registered worker has."""
    objective: Objective = Objective()
    budget: Budget = Budget()
    baseline: TrialConfig | dict[str, JsonValue] | None = None
    """What the user runs today: a configuration of ours, or as it is a DeepSpeed JSON, an Accelerate configuration or
    transformers' TrainingArguments (files they name must be in their place)."""
    space: SpaceLimits = SpaceLimits()
    sampler: SamplerName = "guided"
    """Who proposes the trials: `guided` by what is predicted and what this study has measured, `tpe` and `gp` are Optuna's,
    `random` draws each knob. Where nothing can be predicted, `guided` is `tpe`."""
    seed: int = Field(default=0, ge=0, lt=2**31)
    """Seeds the sampler."""
    checkpoint_every_s: float = Field(default=1800.0, ge=1, le=1e9)
    """How often the training saves that the answer is for: the resume check says what share of its time that takes."""
    wait_for_worker_s: float | None = Field(default=None, gt=0, le=MOST_WAIT_S)
    """Where no worker has the cluster, wait so long for one (`GET /v1/demand` says what is needed), then fail. None: rejected."""

    @field_validator("baseline", mode="before")
    @classmethod
    def _no_path(cls, given: object) -> object:
        if isinstance(given, str):
            raise ValueError(
                f"baseline ({given!r:.200}) must be an object: a configuration, or the content of a DeepSpeed, Accelerate or "
                "TrainingArguments file; send that, since paths (.json, .yaml) are read by the command line only"
            )
        return given

    def with_precision(self, precision: Precision) -> "StudySpec":
        """What is studied, once the precision is decided."""
        given = {name: getattr(self, name) for name in StudyRequest.model_fields}
        return StudySpec(**given | {"workload": self.workload.with_precision(precision)})


class StudySpec(StudyRequest):
    """Everything a study needs: a request whose precision is decided."""

    workload: Workload


class StudyState(StrEnum):
    """`waiting → running ⇄ paused → complete | cancelled | failed`; a complete or failed study that is extended runs again."""

    WAITING = "waiting"
    """For a worker that has its cluster."""
    RUNNING = "running"
    PAUSED = "paused"
    COMPLETE = "complete"
    CANCELLED = "cancelled"
    FAILED = "failed"

    @property
    def is_open(self) -> bool:
        """It has not ended: it runs, or waits for a worker or to be resumed."""
        return self in OPEN_STUDY_STATES


OPEN_STUDY_STATES = (StudyState.WAITING, StudyState.RUNNING, StudyState.PAUSED)
ACTIVE_STUDY_STATES = (StudyState.WAITING, StudyState.RUNNING)
"""Those that need a worker: what counts against quotas, and as demand."""


class StudyPhase(StrEnum):
    """What a running study is doing."""

    MODEL_SUMMARY = "model_summary"
    SEARCH = "search"
    FINAL_COMPARISON = "final_comparison"
    """Final comparison: validation runs of the fastest and of the baseline."""
    DONE = "done"


class StudyPurpose(StrEnum):
    """Who wants a study: `retune` and `canary` are the service's own, and get what workers have left."""

    USER = "user"
    RETUNE = "retune"
    CANARY = "canary"


class Contender(Schema):
    """A measured configuration, as shown to a user."""

    trial_number: int
    config: TrialConfig
    description: str
    """The strategy in words, such as `FSDP2, HSDP 2×8, full checkpointing, micro batch 4`."""
    tokens_per_s_per_gpu: float
    """Median of its validation runs where it has them, else of its search run."""
    spread: tuple[float, float] | None = None
    """Slowest and fastest of its validation runs, in tokens_per_s_per_gpu; None for fewer than two."""
    peak_allocated_gib: float | None
    peak_reserved_gib: float | None
    mfu: float | None = None
    runs: int
    """How many runs the figures rest on."""


class Speedup(Schema):
    """Median of the paired ratios challenger / baseline, with its 95 % interval (`tuner.verdict.paired_test`)."""

    value: float
    ci95: tuple[float, float]
    pairs: int
    ratios: tuple[float, ...] = ()
    """Of each pair, in the order they were run."""


class Verdict(StrEnum):
    """What the pairs say of the candidate."""

    CONFIRMED = "confirmed"
    """It is faster: the interval's lower end is above 1."""
    NOT_FASTER = "not_faster"
    """Not by a gain worth having (`tuner.verdict.undecided`), or there was nothing to compare."""
    UNDECIDED = "undecided"
    """It may be: the pairs were too few, or lie too far apart."""


class FinalComparison(Schema):
    """What it took to reach the verdict."""

    candidates: tuple[int, ...]
    """Trials that were run again, fastest by their search runs first."""
    pairs: int
    """Pairs of challenger and baseline."""
    runs: int
    """Validation runs, those that failed or did not count included."""
    gpu_seconds: float
    ratios: tuple[float, ...] = ()
    """challenger / baseline of each pair, also where they are too few for an interval."""


class StudyResult(Schema):
    """The answer of a study. Where the user gave a baseline, `best` is it unless another was confirmed to be faster; without one,
    `best` is whichever of candidate and fastest default was faster in the pairs, and `verdict` says what is proved."""

    best: Contender
    baseline: Contender
    candidate: Contender | None = None
    """The challenger, where it is not the answer."""
    speedup: Speedup | None
    """None when there was nothing to compare (a single feasible configuration), or too few pairs for an interval."""
    verdict: Verdict
    undecided: OpenVerdict | None = None
    """What would settle it; None unless the verdict is `undecided`."""
    against_defaults: tuple[AgainstDefault, ...] = ()
    """Each documented default that ran, but the answer itself."""
    final_comparison: FinalComparison | None = None
    """None when there was nothing to compare."""
    resume_check: ResumeCheck | None = None
    """Of `best`; None when the budget leaves it out, or there was nothing to compare."""
    notes: tuple[str, ...] = ()
    """What a reader should know, such as a baseline that did not fit and was replaced."""


class Study(Schema):
    """A study as stored."""

    study_id: str
    project_id: str = DEFAULT_PROJECT
    state: StudyState
    phase: StudyPhase
    spec: StudySpec
    cluster: Cluster
    """`spec.cluster` with `local` resolved."""
    model_summary: ModelSummary | None = None
    fingerprint: Fingerprint | None = None
    trials: dict[str, int]
    """Number of trials by state."""
    rejected: int
    """Configurations the memory gate rejected; these are not trials."""
    gpu_seconds: float
    final_comparison: int = 0
    """Number of the final comparison that counts: it grows where one begins, and where a search goes on after one."""
    final_comparison_runs: int | None = None
    """Validation runs that it may take at most; None before there is one."""
    created_at: datetime
    started_at: datetime | None = None
    """When it could run first; None: it still waits for a worker."""
    finished_at: datetime | None = None
    deleted_at: datetime | None = None
    """No list shows it any more; None: it was not deleted."""
    best_so_far: Contender | None = None
    """Fastest by search runs; not yet confirmed."""
    result: StudyResult | None = None
    """Stays while an extended study runs, until the renewed answer takes its place."""
    reason: str | None = None
    """Why the search stopped, or why the study failed."""
    system_study: SystemStudy | None = None
    """What it is for, where the service itself started it; None: a user did."""
    warnings: tuple[str, ...] = ()
    """Which precision was chosen and why, or that the device only emulates the stated one's dtype; keys of the given baseline
    that are unknown or do nothing in a trial, and what was taken for what it leaves open."""


class StudyPage(Schema):
    """Studies in the order asked for."""

    studies: tuple[Study, ...]
    next_page_token: str | None = None
    """None on the last page."""
