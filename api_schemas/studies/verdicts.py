"""Schemas of verdict details: further paired runs that would settle an undecided verdict, the machine that was too busy
to answer, and the result compared with each documented default."""

from typing import Literal

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.machines.conditions import ProgramLoad, program_names
from shardtune.api_schemas.trials.short_steps import Accumulations


class OpenVerdict(Schema):
    """Further paired runs that would settle an undecided verdict."""

    pairs: int
    won_pairs: int
    """Number of pairs of runs in which the candidate was faster."""
    more_pairs: int | None
    """Number of further pairs that would confirm the candidate if they resemble the pairs so far (`add_pairs` of an
    extension); None if more than a study may have."""
    is_extension_off: bool = False
    """Whether the pairs decide nothing because the measured time of a whole step differs from the time extended from
    short steps (fewer micro batches)."""
    disturbed_pairs: int = 0
    """Number of the final comparison's pairs in which other programs disturbed at least one run."""
    disturbed_runs: int = 0
    """Number of runs in the final comparison's pairs that count although other programs disturbed the machine, because
    they had already been repeated the maximum number of times."""


class BusyMachine(Schema):
    """Cause of a `too_busy` verdict: the disturbed runs, the programs that took the cores, and the runs that it
    lacks."""

    rests_on: Literal["pairs", "search"]
    """Runs that were disturbed: the `pairs` of the final comparison, or the runs of the `search` that chose its
    candidates."""
    runs: int
    """Number of the runs on which the verdict rests, not counting attempts that were discarded and repeated."""
    disturbed_runs: int
    """Number of the runs on which the verdict rests that other programs disturbed."""
    uneven_pairs: int
    """Number of pairs that do not count because of unequal load: a run was disturbed, and other programs left the
    pair's other run more or fewer cores."""
    missing_runs: int
    """Number of further runs on a quiet machine that would allow a verdict."""
    foreign_cpu_cores: float | None = None
    """CPU cores that other programs used during a disturbed run (median); None if no worker could observe it."""
    programs: tuple[ProgramLoad, ...] = ()
    """Programs that took the cores, averaged over the disturbed runs, busiest first."""

    def describe(self) -> str:
        """Describe why the machine was too busy to answer, what took the cores, and which runs are missing."""
        kind = "runs of the final comparison" if self.rests_on == "pairs" else "search runs"
        text = (
            f"the machine was too busy to answer: other programs disturbed {self.disturbed_runs} of {self.runs} {kind}"
        )
        if self.foreign_cpu_cores is not None:
            named = program_names(self.programs) or "no process of theirs is visible to the worker"
            text += f" and kept {self.foreign_cpu_cores:.1f} CPU cores busy ({named})"
        return f"{text}; an answer takes {self._missing()} on a quiet machine"

    def _missing(self) -> str:
        pairs, rest = divmod(self.missing_runs, 2)
        if self.rests_on == "pairs" and not rest:
            return f"{'1 more pair' if pairs == 1 else f'{pairs} more pairs'} ({self.missing_runs} runs)"
        return "1 more run" if self.missing_runs == 1 else f"{self.missing_runs} more runs"


class WholeStepCheck(Schema):
    """Time of a configuration's whole step, measured once after the verdict, beside the time extended from short steps
    (fewer micro batches)."""

    trial_number: int
    accumulations: Accumulations
    """Numbers of micro batches of the short steps from which the configuration's step time was extended in its other
    runs."""
    micro_batches: int
    """Number of micro batches of the whole step on each rank."""
    step_time_s: float
    """Seconds of the whole step."""
    extended_step_time_s: float
    """Median, over the configuration's other runs, of the seconds of a whole step as extended from short steps."""
    extension_error: float
    """Step time extended from short steps divided by the measured time of the whole step, minus 1."""
    is_confirmed: bool
    """Whether the extended and the measured step time are at most 3 % apart, or no further than the trial's runs vary
    by chance. Otherwise the pairs count as undecided."""
    is_disturbed: bool = False
    """Whether other programs disturbed the run with whole steps, so that it decides nothing."""


class AgainstDefault(Schema):
    """Speed of the study's best configuration compared with a documented default, at the fastest micro batch measured
    for the default."""

    trial_number: int
    description: str
    micro_batches: tuple[int, ...]
    """Micro batch sizes with which the default was measured."""
    tokens_per_s_per_gpu: float
    runs: int
    """Number of validation runs of the default, or 1 for its search run."""
    ratio: float
    """Speed of the study's best configuration divided by the default's: both of validation runs, or both of search
    runs."""
    is_by_search_runs: bool = False
    """Whether both speeds are those of the search runs, because the default has no validation runs."""
    is_disturbed: bool = False
    """Whether one of the compared runs counts although other programs disturbed its machine."""
