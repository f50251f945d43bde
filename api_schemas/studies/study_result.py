"""Schemas of a study's result: its configurations, the speed-up, the verdict and the final comparison."""

from enum import StrEnum

from pydantic import Field, model_validator

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.studies.recipes import ConsideredRecipe
from shardtune.api_schemas.studies.targets import StudyProjection
from shardtune.api_schemas.studies.verdicts import (
    AgainstDefault,
    BusyMachine,
    ComparisonSummary,
    OpenVerdict,
    SustainedSpeed,
    WholeStepCheck,
    with_present_names,
)
from shardtune.api_schemas.trials.resume_check import ResumeCheck


class Contender(Schema):
    """Measured configuration with its speed and memory, as shown to users."""

    trial_number: int
    config: TrialConfig
    description: str
    """Short description of the configuration, such as `FSDP2, HSDP 2×8, full checkpointing, micro batch 4`."""
    tokens_per_s_per_gpu: float
    """Speed in tokens per second and GPU: the median of the configuration's validation runs, or the speed of its search
    run if it has none. If its step times were extrapolated from steps with fewer micro batches, the speed is that of
    its run with whole steps (`whole_steps`)."""
    spread: tuple[float, float] | None = None
    """Speeds of the slowest and the fastest validation run in tokens per second and GPU; None with fewer than two
    runs."""
    peak_allocated_gib: float | None
    peak_reserved_gib: float | None
    mfu: float | None = None
    runs: int
    """Number of runs from which the configuration's speed and memory are calculated."""


class Speedup(Schema):
    """Speed-up of the challenger (the configuration that may replace the baseline) over the baseline: the median of the
    speed ratios in paired runs, with its 95 % interval (`tuner.verdict.paired_test`)."""

    value: float
    ci95: tuple[float, float]
    pairs: int
    ratios: tuple[float, ...] = ()
    """Speed of the challenger (the configuration that may replace the baseline) divided by the speed of the baseline,
    for each pair of runs in their order."""


class Verdict(StrEnum):
    """Verdict of the paired runs: whether the candidate configuration is faster than the baseline."""

    CONFIRMED = "confirmed"
    """The candidate is faster: the lower end of the 95 % interval of its speed-up is above 1."""
    NOT_FASTER = "not_faster"
    """The runs show that the candidate is not faster than the baseline by a gain that matters
    (`tuner.verdict.undecided`)."""
    UNDECIDED = "undecided"
    """The candidate may be faster, which the runs did not settle: the pairs were too few, or their ratios vary too
    much. Also the verdict if no other configuration was feasible, so that nothing was compared."""
    TOO_BUSY = "too_busy"
    """The machine was too busy to answer: the verdict would rest on disturbed runs
    (`tuner.verdict.too_busy`)."""


class FinalComparison(Schema):
    """Final comparison of a study, in which paired runs decide the verdict: its trials, pairs, runs and costs."""

    number: int = 0
    """Number of the final comparison (paired runs that decide) within the study. Its validation runs state the same
    number as `final_comparison`."""
    candidates: tuple[int, ...]
    """Numbers of the trials that have a validation run in the final comparison, the one with the fastest search run
    first."""
    pairs: int
    """Number of pairs of runs that count. A pair is one run of the challenger (the configuration that may replace the
    baseline) and one of the baseline."""
    disturbed_pairs: int = 0
    """Number of pairs that count although other programs used the machine during one of their runs."""
    runs: int
    """Number of validation runs of all final comparisons of the study, including failed ones."""
    gpu_seconds: float
    ratios: tuple[float, ...] = ()
    """Speed of the challenger (the configuration that may replace the baseline) divided by the speed of the baseline,
    for each pair of runs. The list is given even if it is too short for a confidence interval."""
    uneven_pairs: int = 0
    """Number of pairs left out, in addition to those that count, because the two runs of the pair had unequal
    load: other programs left them different numbers of CPU cores, or one was disturbed and the cause is unknown."""
    disturbed_counted_runs: int = Field(default=0, examples=[4])
    """Number of runs in the counted pairs during which other programs used the machine. They count because both runs of
    such a pair were disturbed equally. Other validation runs are not counted here, such as those that chose the
    challenger, and those of pairs left out."""

    _former_names = model_validator(mode="before")(with_present_names)


class StudyResult(Schema):
    """Result of a study. If the user gave a baseline, `best` is that baseline unless another configuration was
    confirmed to be faster. Otherwise `best` is the faster one, in paired runs, of the candidate and the fastest
    documented default; `verdict` says how certain that is."""

    best: Contender
    baseline: Contender
    replaced_baseline: str | None = None
    """Reason why the result could not use the baseline that the user gave. None if it does, or if the user gave
    none."""
    candidate: Contender | None = None
    """Challenger of the final comparison: the configuration that was compared with the baseline in paired runs. None if
    it became `best`."""
    speedup: Speedup | None
    """Speed-up of the challenger (the configuration that may replace the baseline) over the baseline. None if there was
    nothing to compare (a single feasible configuration), or if there are too few pairs for an interval."""
    verdict: Verdict
    search_runs: int = 0
    """Number of runs of the search that gave a measurement; only trials that fit and trained correctly are counted."""
    disturbed_search_runs: int = 0
    """Number of search runs that count although they were disturbed. Their configurations may be faster than measured.
    Such a run is never pruned, and no other run is pruned because of it."""
    undecided: OpenVerdict | None = None
    """Details of an `undecided` verdict, such as the number of further pairs that would settle it. None for other
    verdicts, and if no second configuration could be compared."""
    too_busy: BusyMachine | None = None
    """Cause of a `too_busy` verdict, and the number of further runs that would allow another one; None for other
    verdicts."""
    later_too_busy: BusyMachine | None = None
    """Load that left the newest final comparison of an extended study without an answer, so that this result stays,
    which an earlier final comparison confirmed. None if the result is that of the newest one."""
    later_undecided: OpenVerdict | None = None
    """Details of the newest final comparison of an extended study if it was undecided, so that this result stays, which
    an earlier final comparison confirmed. None if the result is that of the newest one."""
    later_not_faster: ComparisonSummary | None = None
    """Newest final comparison of an extended study if it found its candidate not faster, and this result stays
    nevertheless: an earlier final comparison confirmed it, and the newest one compared other configurations or has fewer
    undisturbed pairs. None if the result is that of the newest one."""
    confirmed_before: ComparisonSummary | None = None
    """Earlier final comparison of an extended study that confirmed a gain which newer runs of the study contradict, so
    that this result replaced it. None if no confirmed answer was replaced by one that is not confirmed."""
    against_defaults: tuple[AgainstDefault, ...] = ()
    """Speed of `best` compared with each documented default that was measured; `best` itself is left out."""
    final_comparison: FinalComparison | None = None
    """Details of the final comparison (paired runs that decide); None if there was nothing to compare."""
    whole_steps: tuple[WholeStepCheck, ...] = ()
    """Times of whole steps of the compared configurations, to check step times that were extrapolated from steps with
    fewer micro batches. If empty, all runs timed whole steps."""
    sustained: SustainedSpeed | None = None
    """Speed of `best` in one long run after the verdict, beside its speed in the comparison. None if the study makes no
    such run: by default on CPU ranks, and where the machine was too busy for a verdict."""
    recipes: tuple[ConsideredRecipe, ...] = ()
    """Results with other recipes (precisions and optimizers) that the study was asked to consider, in the order of
    `consider`. They never replace the study's answer."""
    resume_check: ResumeCheck | None = None
    """Result of the resume check of `best`, which continues from a checkpoint in new processes. None if the budget
    disables the check, or if there was nothing to compare."""
    projection: StudyProjection | None = None
    """Answer for the study's target (a larger cluster), projected from what was measured. None without a target, and if
    nothing can be projected (`notes` say why)."""
    notes: tuple[str, ...] = ()
    """Notes about the result for people, such as a baseline that did not fit and was replaced."""

    @property
    def newest_verdict(self) -> Verdict:
        """Verdict of the study's newest final comparison. It differs from `verdict` where an extended study keeps the
        answer that an earlier comparison confirmed."""
        if self.later_too_busy is not None:
            return Verdict.TOO_BUSY
        if self.later_not_faster is not None:
            return Verdict.NOT_FASTER
        return self.verdict if self.later_undecided is None else Verdict.UNDECIDED
