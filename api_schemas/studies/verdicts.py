"""Schemas of verdict details: further paired runs that would settle an undecided verdict, the machine that was too busy
to answer, the result compared with each documented default, and the speed of the best configuration in a long run."""

from datetime import datetime
from enum import StrEnum
from typing import Any, Literal

from pydantic import Field, model_validator

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.machines.conditions import NONE_VISIBLE, ProgramLoad, program_names
from shardtune.api_schemas.studies.reasons import StudyReasonCode
from shardtune.api_schemas.trials.short_steps import Accumulations

TOO_BUSY_STATE = "no candidate is shown to be faster on a quiet machine"
"""State of a study whose machine was too busy to answer. Summary, pages and exported files use the same words."""


def with_present_names(stored: Any) -> Any:
    """Replace the former name of `disturbed_counted_runs` in a stored value, which was `disturbed_runs`."""
    if not isinstance(stored, dict) or "disturbed_runs" not in stored:
        return stored
    values = {name: value for name, value in stored.items() if name != "disturbed_runs"}
    return {"disturbed_counted_runs": stored["disturbed_runs"]} | values


class OpenVerdict(Schema):
    """Details of an undecided verdict: the paired runs so far, and the number of further pairs that would settle it."""

    pairs: int
    won_pairs: int
    """Number of pairs in which the candidate's run was faster than the baseline's."""
    more_pairs: int | None
    """Number of further pairs that would confirm the candidate if their speeds are like those of the pairs so far;
    `add_pairs` extends a study by that many. None if a study may not have so many pairs."""
    is_extension_off: bool = False
    """Whether the verdict is undecided because the step time extrapolated from steps with fewer micro batches differs
    from the measured time of a whole step."""
    disturbed_pairs: int = 0
    """Number of the final comparison's pairs in which other programs used the machine during at least one run."""
    disturbed_counted_runs: int = Field(default=0, examples=[4])
    """Number of runs that other programs disturbed and that count in the final comparison's pairs, because no further
    repeats were allowed."""
    ended_by: StudyReasonCode | None = Field(default=None, examples=["gpu_seconds_used"])
    """Limit of the budget that ended the final comparison before its pairs decided: `gpu_seconds_used` or
    `wall_seconds_used`. None if no limit did."""

    _former_names = model_validator(mode="before")(with_present_names)


class ComparisonSummary(Schema):
    """Final comparison of an extended study that is not the one its answer comes from: its two configurations, and the
    pairs on which its verdict rests."""

    trial_number: int = Field(examples=[7])
    """Number of the trial that was compared with the baseline in pairs."""
    description: str = Field(examples=["FSDP2, micro batch 4"])
    """Short description of that trial's configuration."""
    baseline_number: int = Field(examples=[0])
    """Number of the trial that was the baseline."""
    pairs: int = Field(examples=[9])
    """Number of pairs of runs that count."""
    undisturbed_pairs: int = Field(examples=[8])
    """Number of these pairs in which no other program disturbed a run."""
    ratio: float | None = Field(default=None, examples=[1.28])
    """Speed of the trial divided by that of the baseline: the median over the pairs. None without a pair."""
    decided_at: datetime | None = Field(default=None, examples=["2026-11-02T14:05:00Z"])
    """Time at which the comparison's verdict was stored. None if it is the study's newest comparison, and if the time
    is not known."""


class BusyMachine(Schema):
    """Cause of a `too_busy` verdict: the disturbed runs, the programs that took the cores, and the number of runs that
    are missing."""

    rests_on: Literal["pairs", "search"]
    """Kind of runs that were disturbed: those of the final comparison's `pairs`, or those of the `search` that chose
    its candidates."""
    runs: int
    """Number of runs on which the verdict rests. Attempts that were discarded and repeated are not counted."""
    disturbed_runs: int
    """Number of disturbed runs, of those on which the verdict rests: for `pairs`, of all pairs, also those that were left
    out."""
    uneven_pairs: int
    """Number of pairs that do not count because their two runs had unequal load: other programs left one of
    them more cores than the other, or one was disturbed and the cause is unknown."""
    missing_runs: int
    """Number of further runs, on a quiet machine, with which a verdict would be possible. For a disturbed `search`, the
    number of its disturbed runs: only a new study repeats them."""
    foreign_cpu_cores: float | None = None
    """Number of CPU cores that other programs used during a disturbed run (median over these runs). None if no worker
    could observe it; then only the spread of the runs' timed windows shows that they were disturbed."""
    programs: tuple[ProgramLoad, ...] = ()
    """Programs that used the CPU cores, with the cores that each used on average over the disturbed runs, busiest
    first."""

    def describe(self) -> str:
        """Describe why the machine was too busy to answer: which programs used the cores, and what an answer takes."""
        # The final comparison has more runs than its pairs: those that screened candidates, and repeated attempts.
        kind = "runs in pairs" if self.rests_on == "pairs" else "search runs"
        part = f"{self.disturbed_runs} of {self.runs} {kind}"
        part += " (left-out pairs included)" if self.rests_on == "pairs" and self.uneven_pairs else ""
        if self.foreign_cpu_cores is None:
            verb = "was" if self.disturbed_runs == 1 else "were"
            cause = f"{part} {verb} disturbed, as their timed windows show; by what is not known"
        else:
            named = program_names(self.programs, self.foreign_cpu_cores) or NONE_VISIBLE
            cause = f"other programs disturbed {part} and kept {self.foreign_cpu_cores:.1f} CPU cores busy ({named})"
        return f"the machine was too busy to answer: {cause}; an answer takes {self._missing()} on a quiet machine"

    def _missing(self) -> str:
        if self.rests_on == "search":
            # Its disturbed runs chose what was compared, and the study repeats none of them.
            return "a new study"
        pairs, rest = divmod(self.missing_runs, 2)
        if not rest:
            return f"{'1 more pair' if pairs == 1 else f'{pairs} more pairs'} ({self.missing_runs} runs)"
        return "1 more run" if self.missing_runs == 1 else f"{self.missing_runs} more runs"


class WholeStepCheck(Schema):
    """Check of a configuration's step time that was extrapolated from steps with fewer micro batches: after the
    verdict, a whole step is measured and compared with it."""

    trial_number: int
    accumulations: Accumulations
    """Numbers of micro batches of the shorter steps from which the time of the whole step was extrapolated in the
    configuration's other runs."""
    micro_batches: int
    """Number of micro batches that each rank trains in a whole step."""
    step_time_s: float
    """Seconds of the whole step."""
    extended_step_time_s: float
    """Seconds of a whole step as extrapolated from steps with fewer micro batches: the median over the configuration's
    other runs."""
    extension_error: float
    """Step time extrapolated from shorter steps, divided by the measured time of the whole step, minus 1; 0.02 means 2
    % too long."""
    is_confirmed: bool
    """Whether the extrapolated and the measured time of a whole step differ by at most 3 %, or by no more than the
    trial's runs vary by chance. If not, the pairs count as undecided."""
    is_disturbed: bool = False
    """Whether the run that measured whole steps was disturbed. If so, the check decides nothing."""


class AgainstDefault(Schema):
    """Speed of the study's best configuration compared with a documented default configuration. The default was
    measured with several micro batch sizes, and the fastest of them is compared."""

    trial_number: int
    description: str
    micro_batches: tuple[int, ...]
    """Micro batch sizes with which the default was measured."""
    tokens_per_s_per_gpu: float
    runs: int
    """Number of validation runs of the default configuration. It is 1 if the default was measured by its search run
    only."""
    ratio: float
    """Speed of the study's best configuration divided by the speed of the default. Both speeds come from validation
    runs, or both from search runs."""
    is_by_search_runs: bool = False
    """Whether both speeds come from search runs, because the default configuration has no validation runs."""
    is_disturbed: bool = False
    """Whether one of the compared runs was disturbed and counts nevertheless."""


class SustainedOutcome(StrEnum):
    """Outcome of the sustained run, one long run of a study's best configuration after the verdict."""

    MEASURED = "measured"
    FAILED = "failed"
    """The run failed or was lost. The answer stays as it is."""
    LEFT_OUT = "left_out"
    """The run was not made, for example because the study's budget has no room for it."""


class SustainedSpeed(Schema):
    """Speed of a study's best configuration in one long run after the verdict, beside its speed in the comparison, whose
    runs last seconds. It never changes the verdict. A figure that is None was not measured."""

    trial_number: int
    outcome: SustainedOutcome = Field(examples=["measured"])
    reason: str | None = None
    """Reason why the sustained run failed or was left out, or description of how it was disturbed; None if it was
    measured undisturbed."""
    remedy: str | None = Field(default=None, examples=["raise it, or give fewer seconds in budget.sustained_run_s"])
    """Change with which the next answer of the study would have a sustained speed. None if nothing is known, and for an
    answer that an extended study has kept: it gets no further run."""
    compared_tokens_per_s_per_gpu: float = Field(examples=[12180.0])
    """Speed of the configuration in the comparison, in tokens per second and GPU; the same as in `best`."""
    lowest_tokens_per_s_per_gpu: float | None = Field(default=None, examples=[12050.0])
    """Lower end of the interval in which one more run like those of the comparison lies with a probability of 95 %
    (Student's prediction interval of the runs' speeds). None with fewer than two such runs, and if none of them ran on
    the worker of the sustained run."""
    tokens_per_s_per_gpu: float | None = None
    """Sustained speed in tokens per second and GPU: the mean over the second half of the timed steps."""
    duration_s: float | None = Field(default=None, examples=[121.4])
    """Seconds of the timed steps."""
    steps: int | None = Field(default=None, examples=[240])
    """Number of timed steps."""
    is_slower: bool = Field(default=False, examples=[False])
    """Whether the sustained speed is below `lowest_tokens_per_s_per_gpu`, so that chance alone does not explain it.
    False if the run was disturbed."""
    is_disturbed: bool = False
    """Whether the sustained run was disturbed, by other programs or, if its worker could not observe them, as the spread
    of its timed windows shows. It then says little about clocks."""
    sm_clock_mhz: float | None = Field(default=None, examples=[1605.0])
    """Mean clock of the slowest GPU's multiprocessors in the sustained run, in MHz."""
    compared_sm_clock_mhz: float | None = Field(default=None, examples=[1710.0])
    """Mean clock of the slowest GPU's multiprocessors in the comparison, in MHz: the median over its runs."""
    temperature_c: float | None = Field(default=None, examples=[84.0])
    """Highest temperature of a GPU in the sustained run, in degrees Celsius."""
    compared_temperature_c: float | None = Field(default=None, examples=[71.0])
    """Highest temperature of a GPU in the comparison, in degrees Celsius: the median over its runs."""
    power_w: float | None = Field(default=None, examples=[690.0])
    """Mean power draw of a GPU in the sustained run, in watts: the mean over the GPUs."""
    throttle_reasons: tuple[str, ...] = Field(default=(), examples=[["software thermal slowdown"]])
    """Reasons for which GPUs lowered their clocks in the sustained run, as the driver reports them."""
