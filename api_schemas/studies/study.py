"""Schemas of a study (a search for the fastest training configuration): the user's request, its state and its result."""

from datetime import datetime
from enum import StrEnum
from typing import Literal

from pydantic import ConfigDict, Field, JsonValue, field_validator, model_validator

from shardtune.api_schemas.access.keys import DEFAULT_PROJECT
from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.machines.hardware import Cluster, ClusterChoice, Fingerprint
from shardtune.api_schemas.strategies import TrialConfig, optimizer_support
from shardtune.api_schemas.strategies.recipe_support import fp16_support, quantization_support
from shardtune.api_schemas.studies.reasons import StudyReasonCode
from shardtune.api_schemas.studies.recipes import (
    FEWEST_LOSS_STEPS,
    MOST_CONSIDERED,
    ConsideredName,
    ConsideredRecipe,
    check_names,
    is_stated,
)
from shardtune.api_schemas.studies.system_studies import SystemStudy
from shardtune.api_schemas.studies.targets import StudyProjection, TargetChoice
from shardtune.api_schemas.studies.verdicts import AgainstDefault, BusyMachine, OpenVerdict, WholeStepCheck
from shardtune.api_schemas.training.models import EXAMPLE, ModelChoice, ModelSummary
from shardtune.api_schemas.training.search_space import SpaceLimits
from shardtune.api_schemas.training.workload import Precision, Workload, WorkloadRequest
from shardtune.api_schemas.trials.measurements import MOST_LOSS_STEPS
from shardtune.api_schemas.trials.resume_check import ResumeCheck

FEWEST_PAIRS, MOST_PAIRS = 7, 100
"""Minimum number of pairs of runs for a verdict by signs alone (all of them won), and maximum number of pairs in a study.
On a quiet machine fewer may be enough (`tuner.verdict.quiet_test`)."""
DEFAULT_TRIALS, MOST_TRIALS = 40, 10_000
"""Default maximum number of trials in a search, and the largest number that a budget may set."""
MOST_WAIT_S = 30 * 86_400.0
"""Longest time in seconds that a study may wait for a worker."""
MOST_QUIET_WAIT_S = 7 * 86_400.0
"""Longest time in seconds that a study may wait in all until machines are quiet."""


SamplerName = Literal["guided", "tpe", "gp", "random"]


class Objective(Schema):
    """Quantity that a study maximises, and its constraints."""

    metric: Literal["tokens_per_s_per_gpu"] = "tokens_per_s_per_gpu"
    memory_headroom: float = Field(default=0.05, ge=0, lt=0.9)
    """Fraction of memory that the best configuration must leave free; a run that uses more fails as `over_limit`."""


class Budget(Schema):
    """Limits of a study. The first limit reached ends the search; the final comparison (paired runs that decide) has
    limits of its own."""

    max_trials: int | None = Field(default=None, ge=1, le=MOST_TRIALS)
    """Exact number of trials, unless the search space is exhausted first. None: up to 40, fewer if further gain is
    unlikely."""
    max_gpu_seconds: float | None = Field(default=None, gt=0)
    """Maximum GPU-seconds (seconds × ranks) of all runs of the study."""
    max_wall_seconds: float | None = Field(default=None, gt=0)
    """Maximum seconds since the moment at which the study could first run."""
    planned_gpu_hours: float | None = Field(default=None, gt=0, le=1e9, examples=[5000.0])
    """Length in hours × GPUs of the training run that will use the result. If set, the search stops once the next trial
    is expected to cost more GPU-time than it saves, instead of at an expected gain below 1 %. Not allowed together with
    `max_trials`."""
    max_pairs: int = Field(default=24, ge=FEWEST_PAIRS, le=MOST_PAIRS)
    """Maximum pairs of validation runs (challenger and baseline) before the verdict may remain `undecided`. More pairs
    detect smaller gains."""
    repeat_disturbed: float = Field(default=0.5, ge=0, le=3)
    """Maximum number of runs repeated because other programs disturbed the machine, as a fraction of the runs that
    count; 0: none. Disturbed runs that count may make the verdict `too_busy`."""
    prune: bool = True
    """Whether to end a search trial during warm-up once it is certainly more than 10 % slower than the fastest so far,
    where neither run was disturbed by other programs.
    The trial's state is then `pruned`: its speed guides the search, but no result uses it."""
    short_steps: bool = True
    """Whether steps that are predicted to take seconds are timed with fewer micro batches and extended to the whole step,
    which the winner and its opponent run once after the verdict."""
    resume_check: bool = True
    """Whether the best configuration must pass a resume check before it becomes the result: it trains, saves a
    checkpoint and continues from it in new processes (takes seconds, and 16 bytes of disk per parameter)."""
    skip_rehearsal: bool = False
    """Whether to leave out the rehearsals of a study with a `target`. After the verdict a worker builds the fastest
    projected configurations at the target's number of ranks, each in one to four minutes of a core, up to four of them."""

    profile: bool = False
    """Whether to run the best configuration and its opponent once more after the verdict, with some steps under torch's
    profiler: `GET /v1/studies/{id}/trials/{n}/diagnosis`. Each run takes about as long as a trial; the result does not
    wait for it."""

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
        """Maximum number of trials after which the search ends."""
        return self.max_trials or DEFAULT_TRIALS


class StudyRequest(Schema):
    """Request to create a study; also the format of a study file."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"model": EXAMPLE, "workload": {"sequence_length": 128, "global_batch": 8}, "cluster": "local"}
            ]
        }
    )

    model: ModelChoice
    """Model to train: a preset's name, its id on the Hugging Face hub (`OWNER/NAME` or `OWNER/NAME@REVISION`), a
    `config.json`, or your own code that the worker's owner allows."""
    workload: WorkloadRequest
    cluster: ClusterChoice = "local"
    """Cluster to tune for: in full, by its short form (`8xh100`, `4x8xa100-80gb`), or `local`: the hardware of the only
    registered worker."""
    target: TargetChoice | None = None
    """Larger cluster of the same GPUs that the answer is projected to, in full or by its short form `NODESxGPUS`, such as
    `64x8`. `workload.global_batch` is then the target's, and the study replaces it by the cluster's part. null: no
    projection."""
    confirms: str | None = Field(
        default=None, max_length=32, pattern=r"^[A-Za-z0-9._-]+$", examples=["study-0123456789ab"]
    )
    """Study whose projection this study confirms or changes: it compares the first two choices on the target, as
    `confirm.json` of the export for the target says. null: the study stands alone."""
    objective: Objective = Objective()
    budget: Budget = Budget()
    baseline: TrialConfig | dict[str, JsonValue] | None = None
    """Configuration that you use today: in Shardtune's format, or an unchanged DeepSpeed JSON, Accelerate configuration
    or TrainingArguments of transformers (replace references to files by their content)."""
    space: SpaceLimits = SpaceLimits()
    consider: tuple[ConsideredName, ...] = Field(
        default=(), max_length=MOST_CONSIDERED, examples=[["bf16-true", "muon"]]
    )
    """Recipes (other precisions and optimizers) to run beside the answer: what each brings in speed and memory, and what
    it costs in losses. They change what is trained, so none of them becomes the answer. Each takes 3 to 10 pairs of
    runs, and its first run begins with `consider_steps` steps."""
    consider_steps: int = Field(default=200, ge=FEWEST_LOSS_STEPS, le=MOST_LOSS_STEPS)
    """Number of steps over which the losses of considered recipes are compared with the stated one's, on the same
    data."""
    most_loss_difference: float = Field(default=0.02, gt=0, le=10)
    """Loss by which a considered recipe may be worse, as a mean over the last half of the steps. A recipe beyond it is
    said to train worse."""
    sampler: SamplerName = "guided"
    """Algorithm that proposes trials: `guided` uses predictions and the study's measurements, `tpe` and `gp` are
    Optuna's, `random` samples each knob. `guided` falls back to `tpe` if nothing can be predicted."""
    seed: int = Field(default=0, ge=0, lt=2**31)
    """Random seed of the sampler that proposes trials."""
    checkpoint_every_s: float = Field(default=1800.0, ge=1, le=1e9)
    """Seconds between two checkpoints of the training run that will use the result; the resume check reports the
    fraction of time that saving takes."""
    wait_for_worker_s: float | None = Field(default=None, gt=0, le=MOST_WAIT_S)
    """Seconds to wait for a worker if none has the cluster (`GET /v1/demand` shows the demand); then the study fails.
    null: the study is rejected at once."""
    wait_for_quiet_s: float | None = Field(default=None, gt=0, le=MOST_QUIET_WAIT_S, examples=[1800.0])
    """Seconds, summed over all runs, that workers may wait before runs until other programs leave the machine; then
    the runs take place anyway. null: no waiting. Workers that wait at the same time may each use the rest."""

    @field_validator("baseline", mode="before")
    @classmethod
    def _no_path(cls, baseline: object) -> object:
        if isinstance(baseline, str):
            raise ValueError(
                f"baseline ({baseline!r:.200}) must be an object: a configuration, or the content of a DeepSpeed, Accelerate or "
                "TrainingArguments file; send that, since paths (.json, .yaml) are read by the command line only"
            )
        return baseline

    @model_validator(mode="after")
    def _comparable_recipes(self) -> "StudyRequest":
        check_names(self.consider, self.workload, is_script=self.model.script is not None)
        return self

    def with_precision(self, precision: Precision) -> "StudySpec":
        """Return the complete study specification, with the given precision in the workload."""
        fields = {name: getattr(self, name) for name in StudyRequest.model_fields}
        # A recipe that was named beside `auto` may be the one that the device chose.
        workload = self.workload.with_precision(precision)
        fields["consider"] = tuple(name for name in self.consider if not is_stated(workload, name))
        return StudySpec(**fields | {"workload": workload})


class StudySpec(StudyRequest):
    """Complete specification of a study: its request with the precision decided."""

    workload: Workload

    def with_possible_backends(self) -> "StudySpec":
        """Return the specification without the backends that cannot train with the workload's optimizer, or beside
        its quantised weights.

        Raises:
            ValueError: none of them can.
        """
        backends = optimizer_support.trainable_backends(self.space.backends, self.workload.optimizer)
        backends = quantization_support.trainable_backends(backends, self.workload.adapter)
        optimizer_support.check_limits(self.space.knobs, self.workload.optimizer)
        fp16_support.check_limits(self.space.knobs, self.workload.precision)
        return self.model_copy(update={"space": self.space.model_copy(update={"backends": backends})})


class StudyState(StrEnum):
    """State of a study: `waiting → running ⇄ paused → complete | cancelled | failed`; extending a complete or failed
    study makes it run again."""

    WAITING = "waiting"
    """The study waits for a worker with its cluster."""
    RUNNING = "running"
    PAUSED = "paused"
    COMPLETE = "complete"
    CANCELLED = "cancelled"
    FAILED = "failed"

    @property
    def is_open(self) -> bool:
        """Whether the study has not ended: it is running, paused, or waiting for a worker."""
        return self in OPEN_STUDY_STATES


OPEN_STUDY_STATES = (StudyState.WAITING, StudyState.RUNNING, StudyState.PAUSED)
ACTIVE_STUDY_STATES = (StudyState.WAITING, StudyState.RUNNING)
"""States in which a study needs a worker; such studies count against quotas and as demand."""


class StudyPhase(StrEnum):
    """Phase of a running study."""

    MODEL_SUMMARY = "model_summary"
    SEARCH = "search"
    FINAL_COMPARISON = "final_comparison"
    """Validation runs of the fastest trials and the baseline, which decide the verdict."""
    DONE = "done"


class StudyPurpose(StrEnum):
    """Purpose of a study. `retune` and `canary` are started by the service, and run only on workers that no user's
    study needs."""

    USER = "user"
    RETUNE = "retune"
    CANARY = "canary"


class Contender(Schema):
    """Measured configuration with its speed and memory, as shown to users."""

    trial_number: int
    config: TrialConfig
    description: str
    """Short description of the configuration, such as `FSDP2, HSDP 2×8, full checkpointing, micro batch 4`."""
    tokens_per_s_per_gpu: float
    """Speed in tokens per second and GPU: that of its run with whole steps where the others were extended
    (`whole_steps`), else the median of the configuration's validation runs, or the speed of its search run if it has
    none."""
    spread: tuple[float, float] | None = None
    """Speeds of the slowest and the fastest validation run in tokens per second and GPU; None with fewer than two
    runs."""
    peak_allocated_gib: float | None
    peak_reserved_gib: float | None
    mfu: float | None = None
    runs: int
    """Number of runs from which the configuration's figures are calculated."""


class Speedup(Schema):
    """Speed-up of the challenger over the baseline: the median of the paired ratios, with its 95 % interval
    (`tuner.verdict.paired_test`)."""

    value: float
    ci95: tuple[float, float]
    pairs: int
    ratios: tuple[float, ...] = ()
    """Ratio of challenger speed to baseline speed in each pair, in the order of the runs."""


class Verdict(StrEnum):
    """Verdict of the paired runs about the candidate configuration."""

    CONFIRMED = "confirmed"
    """The candidate is faster: the lower end of the 95 % interval of its speed-up is above 1."""
    NOT_FASTER = "not_faster"
    """The candidate is not faster by a relevant gain (`tuner.verdict.undecided`), by runs beside the baseline's."""
    UNDECIDED = "undecided"
    """The candidate may be faster: the pairs were too few, or their ratios vary too much; or no other configuration was
    feasible, so that nothing was compared."""
    TOO_BUSY = "too_busy"
    """The machine was too busy to answer: the verdict would rest on runs that other programs disturbed
    (`tuner.verdict.too_busy`)."""


class FinalComparison(Schema):
    """Final comparison of a study (paired runs that decide): its trials, pairs, runs and costs."""

    number: int = 0
    """Number of the final comparison within the study, as in `final_comparison` of its validation runs."""
    candidates: tuple[int, ...]
    """Candidates that have a validation run in the final comparison, fastest by their search runs first."""
    pairs: int
    """Number of pairs of challenger and baseline runs."""
    disturbed_pairs: int = 0
    """Number of pairs in which a run counts although other programs disturbed its machine."""
    runs: int
    """Number of validation runs of all final comparisons of the study, including failed ones."""
    gpu_seconds: float
    ratios: tuple[float, ...] = ()
    """Ratio of challenger speed to baseline speed in each pair, even if too few for an interval."""
    uneven_pairs: int = 0
    """Number of further pairs that were left out, because other programs left their two runs different numbers of CPU
    cores."""
    disturbed_runs: int = 0
    """Number of the pairs' runs that other programs disturbed, equally in both runs of a pair."""


class StudyResult(Schema):
    """Result of a study. With a baseline from the user, `best` is the baseline unless another configuration was
    confirmed to be faster. Without one, `best` is the faster of candidate and fastest default in paired runs, and
    `verdict` gives the certainty."""

    best: Contender
    baseline: Contender
    replaced_baseline: str | None = None
    """Reason why the baseline that the user gave could not be the result's; None: it is, or the user gave none."""
    candidate: Contender | None = None
    """Challenger of the final comparison if it did not become `best`."""
    speedup: Speedup | None
    """Speed-up of the challenger over the baseline; None if there was nothing to compare (a single feasible
    configuration), or too few pairs for an interval."""
    verdict: Verdict
    search_runs: int = 0
    """Number of search runs with a measurement, of feasible trials."""
    disturbed_search_runs: int = 0
    """Number of these search runs that count although other programs disturbed the machine: the trials may be faster
    than measured. A disturbed run never ends early and ends no other run."""
    undecided: OpenVerdict | None = None
    """Further paired runs that would settle the verdict; None unless the verdict is `undecided`, and where there was
    nothing to compare."""
    too_busy: BusyMachine | None = None
    """Cause of a `too_busy` verdict and the runs that it lacks; None for other verdicts."""
    against_defaults: tuple[AgainstDefault, ...] = ()
    """Speed of `best` compared with each documented default that ran, except itself."""
    final_comparison: FinalComparison | None = None
    """Details of the final comparison (paired runs that decide); None if there was nothing to compare."""
    whole_steps: tuple[WholeStepCheck, ...] = ()
    """Whole steps of the compared configurations, timed once, where the study timed short steps and extended them; empty
    where all runs timed whole steps."""
    recipes: tuple[ConsideredRecipe, ...] = ()
    """Recipes that the study considered, in the order of `consider`: they stand beside the answer and never replace it."""
    resume_check: ResumeCheck | None = None
    """Result of the resume check of `best`; None if the budget disables it, or there was nothing to compare."""
    projection: StudyProjection | None = None
    """Answer for the study's target, projected from what was measured; None without a target, and where nothing can be
    projected (`notes` say why)."""
    notes: tuple[str, ...] = ()
    """Notes about the result for people, such as a baseline that did not fit and was replaced."""


class Study(Schema):
    """Study as stored, with its state, progress and result."""

    study_id: str
    project_id: str = DEFAULT_PROJECT
    state: StudyState
    phase: StudyPhase
    spec: StudySpec
    cluster: Cluster
    """Cluster of the study's specification, with `local` replaced by the actual hardware."""
    model_summary: ModelSummary | None = None
    """Summary of the study's model (parameters and FLOPs); None until a worker has built the model."""
    fingerprint: Fingerprint | None = None
    trials: dict[str, int]
    """Number of the study's trials by state."""
    rejected: int
    """Number of configurations rejected by the memory gate (predicted not to fit); they are not trials."""
    gpu_seconds: float
    final_comparison: int = 0
    """Number of the final comparison whose runs count. It increases when a final comparison begins, and when a search
    continues after one."""
    final_comparison_runs: int | None = None
    """Maximum number of validation runs in the final comparison; None before there is one."""
    created_at: datetime
    started_at: datetime | None = None
    """Time at which the study could first run; None if it still waits for a worker."""
    finished_at: datetime | None = None
    deleted_at: datetime | None = None
    """Time at which the study was deleted, after which lists omit it; None if not deleted."""
    best_so_far: Contender | None = None
    """Fastest configuration of the search so far, by search runs and not yet confirmed."""
    result: StudyResult | None = None
    """Result of the study. If the study is extended, the previous result remains until a new one replaces it."""
    reason: str | None = None
    """Reason why the search stopped, why the study failed, or why no worker takes its runs, as text."""
    reason_code: StudyReasonCode | None = None
    """Code of that reason, for programs; None: there is no reason, or the service did not know a code for it."""
    reason_details: str = ""
    """Part of `reason` that stands in brackets at its end, such as the losses that differ."""
    system_study: SystemStudy | None = None
    """Task of a study that the service started itself; None for a user's study."""
    warnings: tuple[str, ...] = ()
    """Warnings about the study request: the precision chosen for `auto` and why, or that the device only emulates the
    stated dtype; baseline keys that are unknown or have no effect, and assumed values for missing ones."""


class StudyPage(Schema):
    """Page of studies in the requested order."""

    studies: tuple[Study, ...]
    next_page_token: str | None = None
    """Token with which to request the next page; None on the last page."""
