"""Rule that decides when the machine was too busy to answer: a verdict must not rest on disturbed runs.

Two runs are an even pair if neither was disturbed, or if other programs left both about the same number of cores: under
equal steady load a paired comparison is still evidence. Any other pair is uneven. Hence:

- A final comparison leaves uneven pairs out and runs others in their place, until they are half of `max_pairs`. Pairs
  that a user adds to an ended comparison run even then.
- Its verdict is that of the even pairs (`tuner.verdict.undecided`). If these settle nothing, and half or more of all
  pairs were uneven, or too few for an interval are left, or no pair was free of disturbance, the verdict is `too_busy`
  instead of `undecided`: what is faster beside other programs may be slower alone.
- `not_faster`, and any verdict without a pair, also rest on the search. They become `too_busy` where most runs of the
  search are uneven beside the baseline's search run.
- After an extension, `too_busy` says nothing against what an earlier final comparison confirmed: that result stays
  (`tuner.verdict.kept_answer`).

The rule reads circumstances, never speeds, and treats both runs of a pair alike. So the sign of an even pair of equal
configurations is still a fair coin, and the error of `tuner.verdict.paired_test` does not change.
"""

from collections import defaultdict
from collections.abc import Sequence
from statistics import median
from typing import Literal

from shardtune.api_schemas.machines.conditions import MOST_PROGRAMS, ProgramLoad
from shardtune.api_schemas.studies.budget import FEWEST_PAIRS
from shardtune.api_schemas.studies.study_result import StudyResult, Verdict
from shardtune.api_schemas.studies.verdicts import BusyMachine
from shardtune.api_schemas.trials.measurements import Measurement
from shardtune.api_schemas.trials.trial import TrialState
from shardtune.tuner.history import Observation
from shardtune.tuner.verdict.comparison_blocks import Pair
from shardtune.tuner.verdict.run_load import RunLoad, is_even

_LEAST_CORES = 0.05
"""Minimum number of cores that a program must have used to be named in a result: a smaller number would be printed as
0.0."""


def may_go_on(uneven: int, most_pairs: int) -> bool:
    """Whether a final comparison goes on after this many uneven pairs (pairs whose two runs had unequal load from other
    programs). On a machine that stays busy, further pairs would be in vain."""
    return 2 * uneven < most_pairs


def checked(
    result: StudyResult,
    history: Sequence[Observation],
    even: Sequence[Pair],
    uneven: Sequence[Pair],
) -> StudyResult:
    """Return the result of a final comparison, with the verdict `too_busy` where it would rest on disturbed runs.

    `even`, `uneven`: the pairs that count, as other programs loaded their two runs equally, and the pairs that were
    left out.
    """
    busy: BusyMachine | None = None
    if result.verdict is Verdict.UNDECIDED and (
        blocks_verdict(len(even), len(uneven)) or _no_pair_is_undisturbed(even)
    ):
        busy = _busy_pairs(result, history, even, uneven)
    elif _rests_on_search(result):
        busy = _busy_search(history, result.baseline.trial_number)
    if busy is None:
        return result
    return result.model_copy(update={"verdict": Verdict.TOO_BUSY, "too_busy": busy, "undecided": None})


def blocks_verdict(even: int, uneven: int) -> bool:
    """Whether a comparison settled nothing because other programs loaded the two runs of many pairs unequally, and not
    because the remaining pairs differ."""
    return uneven >= max(1, even) or even < FEWEST_PAIRS <= even + uneven


def _no_pair_is_undisturbed(even: Sequence[Pair]) -> bool:
    return bool(even) and all(pair.disturbed_runs for pair in even)


def _rests_on_search(result: StudyResult) -> bool:
    """Whether a result rests on the search having missed nothing: its verdict is not faster, or the search found no
    trial to pair with the baseline."""
    comparison = result.final_comparison
    return result.verdict is Verdict.NOT_FASTER or (comparison is not None and comparison.pairs == 0)


def _busy_pairs(
    result: StudyResult,
    history: Sequence[Observation],
    even: Sequence[Pair],
    uneven: Sequence[Pair],
) -> BusyMachine:
    paired = {result.baseline.trial_number, (result.candidate or result.best).trial_number}
    missing_pairs = max(FEWEST_PAIRS - len(even), 1)
    if len(even) >= FEWEST_PAIRS and result.undecided is not None:
        missing_pairs = result.undecided.more_pairs or FEWEST_PAIRS
    return _busy(
        rests_on="pairs",
        loads=[load for pair in (*even, *uneven) for load in pair.loads],
        measured=[run for obs in history if obs.number in paired for run in obs.validation_runs],
        uneven=len(uneven),
        missing_runs=2 * missing_pairs,
    )


def _busy_search(history: Sequence[Observation], baseline: int) -> BusyMachine | None:
    """Summary of the load on the machine if a search proves nothing, because most of its runs had another load from
    other programs than the baseline's run; else None."""
    measured = {
        obs.number: obs.measurement
        for obs in history
        if obs.state in (TrialState.COMPLETE, TrialState.PRUNED) and obs.measurement is not None
    }
    reference = measured.get(baseline)
    if reference is None:
        return None
    others = [run for number, run in measured.items() if number != baseline]
    uneven = sum(not is_even(RunLoad.of(reference), RunLoad.of(run)) for run in others)
    if 2 * uneven <= len(others):
        return None
    loads = [RunLoad.of(run) for run in measured.values()]
    return _busy(
        rests_on="search",
        loads=loads,
        measured=list(measured.values()),
        uneven=uneven,
        missing_runs=sum(load.is_disturbed for load in loads),
    )


def _busy(
    *,
    rests_on: Literal["pairs", "search"],
    loads: Sequence[RunLoad],
    measured: Sequence[Measurement],
    uneven: int,
    missing_runs: int,
) -> BusyMachine:
    """Summarize the load of the runs that a verdict would rest on (`loads`), and the other programs seen during the
    runs of the same trials (`measured`)."""
    disturbed = [run.conditions for run in measured if run.disturbed is not None]
    cores = [seen.foreign_cpu_cores for seen in disturbed if seen is not None and seen.foreign_cpu_cores is not None]
    totals: dict[str, float] = defaultdict(float)
    for seen in disturbed:
        for program in seen.foreign_programs if seen is not None else ():
            totals[program.name] += program.cores / len(disturbed)
    busiest = sorted(totals.items(), key=lambda item: (-item[1], item[0]))[:MOST_PROGRAMS]
    return BusyMachine(
        rests_on=rests_on,
        runs=len(loads),
        disturbed_runs=sum(load.is_disturbed for load in loads),
        uneven_pairs=uneven,
        missing_runs=missing_runs,
        foreign_cpu_cores=median(cores) if cores else None,
        programs=tuple(
            ProgramLoad(name=name, cores=round(total, 2)) for name, total in busiest if total >= _LEAST_CORES
        ),
    )
