"""Reasons to doubt a result because of its machine: other programs took CPU cores, runs were disturbed for an unknown
reason, or GPUs lowered their clocks."""

from collections.abc import Sequence

from shardtune.api_schemas.formatting import counted
from shardtune.api_schemas.machines.conditions import NONE_VISIBLE, program_names
from shardtune.api_schemas.studies.study_result import Contender, StudyResult
from shardtune.api_schemas.studies.verdicts import BusyMachine
from shardtune.api_schemas.trials.measurements import Measurement
from shardtune.service.wording import study_words
from shardtune.service.wording.answers.trust_line import TOO_BUSY, Trust, part_of
from shardtune.service.wording.result_runs import ResultRuns
from shardtune.tuner.verdict import disturbance

_UNKNOWN_LOAD = "their two runs may have had unequal load"


def busy_cause(busy: BusyMachine) -> str:
    """Describe in words, without numbers of runs, which runs of a too busy machine were disturbed and which programs
    took its cores."""
    runs = "the runs that decide" if busy.rests_on == "pairs" else "the runs of the search"
    if busy.foreign_cpu_cores is None:
        return f"{runs} were disturbed; by what is not known"
    named = program_names(busy.programs, busy.foreign_cpu_cores) or NONE_VISIBLE
    cores = f"kept {busy.foreign_cpu_cores:.1f} CPU cores busy ({named})"
    return f"other programs disturbed {runs} and {cores}"


def too_busy(result: StudyResult) -> list[Trust]:
    """Return the reason why the machine was too busy to answer, as a list; empty if it was not."""
    busy = result.too_busy
    return [Trust("bad", busy.describe(), busy_cause(busy), TOO_BUSY)] if busy is not None else []


def uneven_pairs(result: StudyResult, stored: ResultRuns) -> list[Trust]:
    """Return remarks about disturbed pairs of runs: how many were left out, because their two runs had unequal load, and how many runs count although other programs disturbed them."""
    comparison = result.final_comparison
    if comparison is None:
        return []
    reasons = []
    if comparison.uneven_pairs:
        pairs = "1 more pair was" if comparison.uneven_pairs == 1 else f"{comparison.uneven_pairs} more pairs were"
        runs_of_pairs = [run for side in compared_sides(result) for run in stored.runs_of(side.trial_number)]
        is_load = _are_disturbed_by_programs(runs_of_pairs)
        why = "other programs left the two runs unequal numbers of cores" if is_load else _UNKNOWN_LOAD
        reasons.append(Trust("quiet", f"{pairs} left out, because {why}"))
    # The verdict `too_busy` says it itself, of all pairs.
    if comparison.disturbed_counted_runs and result.too_busy is None:
        disturbed, runs = comparison.disturbed_counted_runs, 2 * comparison.pairs
        fair = (
            "Both runs of a pair had about as many cores left, so each pair is fair; the speed-up on a quiet machine may "
            "differ"
        )
        text = f"other programs disturbed {disturbed} of the {runs} runs in these pairs. {fair}"
        brief = f"other programs disturbed {part_of(disturbed, runs)} the compared runs. {fair}"
        reasons.append(Trust("warn", text, brief))
    return reasons


def disturbed_runs(result: StudyResult, stored: ResultRuns) -> list[Trust]:
    """Warn about validation runs that were disturbed but count nevertheless, with one reason for each of the two
    compared configurations."""
    sides = {side.trial_number: stored.runs_of(side.trial_number) for side in compared_sides(result)}
    runs = [run for of_side in sides.values() for run in of_side]
    disturbed = sum(run.disturbed is not None for run in runs)
    comparison = result.final_comparison
    is_said = result.too_busy is not None or (comparison is not None and comparison.disturbed_counted_runs > 0)
    # A pair whose runs had unequal load is left out: not every run that was kept counts.
    is_left_out = result.too_busy is not None or (comparison is not None and comparison.uneven_pairs > 0)
    part_of_runs = f"{part_of(disturbed, len(runs))} the validation runs"
    is_load = _are_disturbed_by_programs(runs)
    both = f"{part_of_runs} count although {'other programs disturbed them' if is_load else 'they were disturbed'}"
    if comparison is not None and comparison.pairs and not comparison.disturbed_counted_runs:
        cause = f"other programs disturbed {part_of_runs}" if is_load else f"{part_of_runs} were disturbed"
        both = f"{cause}, none in the pairs that count"
    reasons: list[Trust] = []
    for number, of_side in sides.items():
        causes = [run.disturbed for run in of_side if run.disturbed is not None]
        if causes:
            name = f"the baseline, trial {number}," if number == result.baseline.trial_number else f"trial {number}"
            part = f"{len(causes)} of the {counted(len(of_side), 'validation run')} of {name}"
            verb = "was" if len(causes) == 1 else "were"
            kept = "counts" if len(causes) == 1 else "count"
            text = f"{part} {f'{verb} disturbed' if is_left_out else f'{kept} although disturbed'}"
            reasons.append(Trust("warn", f"{text} (the last: {causes[-1]})", "" if is_said or reasons else both))
    return reasons


def _are_disturbed_by_programs(runs: Sequence[Measurement]) -> bool:
    """Whether some of the runs were disturbed, each of these by other programs that its worker observed."""
    disturbed = [run for run in runs if run.disturbed is not None]
    return bool(disturbed) and all(run.is_disturbed_by_programs for run in disturbed)


def compared_sides(result: StudyResult) -> list[Contender]:
    """Return the two configurations that a result compares: the candidate, or the best where it won, before the
    baseline; the baseline alone where nothing was compared."""
    first = result.candidate or result.best
    is_alone = first.trial_number == result.baseline.trial_number
    return [first] if is_alone else [first, result.baseline]


def disturbed_searches(result: StudyResult) -> list[Trust]:
    """Warn about search runs that were disturbed but count nevertheless."""
    text = study_words.disturbed_searches(result)
    if not text:
        return []
    part, faster = part_of(result.disturbed_search_runs, result.search_runs), "may be faster than measured"
    # Neither more pairs nor more trials repeat them.
    faster += "; a new study on a quiet machine would tell"
    # Not "by other programs": without a view of them, the spread of a run's timed windows shows a disturbance.
    brief = f"{part} the search was disturbed: what ran then {faster}"
    return [Trust("warn", f"{text}: what ran there {faster}", brief)]


def throttled_runs(result: StudyResult, stored: ResultRuns) -> list[Trust]:
    """Warn about runs of the best configuration in which a GPU ran at reduced clock rates."""
    runs = stored.runs_of(result.best.trial_number) or tuple(filter(None, (stored.best_search_run,)))
    causes = [cause for run in runs if (cause := disturbance.throttling(run)) is not None]
    if not causes:
        return []
    which = f"{len(causes)} of the {len(runs)} runs" if len(runs) > 1 else "the run"
    text = f"{which} of trial {result.best.trial_number} had lowered clocks (the last: {causes[-1]})"
    brief = f"a GPU ran at lowered clocks ({causes[-1]})"
    return [Trust("warn", f"{text}; a cooler machine may be faster", f"{brief}; a cooler machine may be faster")]
