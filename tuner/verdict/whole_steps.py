"""Whole steps: the one run of winner and baseline that times whole steps after the verdict, where the pairs' step times
were extended from short ones, and what it says about the verdict."""

import math
from collections.abc import Sequence
from statistics import median, stdev

from shardtune.api_schemas.formatting import rate
from shardtune.api_schemas.studies.final_comparison import Finalists
from shardtune.api_schemas.studies.study_result import StudyResult, Verdict
from shardtune.api_schemas.studies.verdicts import OpenVerdict, WholeStepCheck
from shardtune.api_schemas.trials.measurements import Measurement
from shardtune.tuner.history import Observation

WHOLE_STEP_BLOCK = -1
"""Number that replaces a comparison block's number in the runs that time whole training steps after the verdict (the
final comparison may time short steps, with fewer micro batches, and extrapolate). These runs form no pairs, but all run
on one worker, as those of a block do."""
MOST_OFF = 0.03
"""Largest relative error at which a step time that was extrapolated from short steps (with fewer micro batches) still
counts; above it, comparisons of such times decide nothing."""
_MOST_DEVIATIONS = 2.5
"""Number of standard deviations (between a trial's runs) by which a timed whole step may differ by chance from the time
extrapolated from short steps (with fewer micro batches). It applies if it allows more than `MOST_OFF`."""


def due(result: StudyResult, history: Sequence[Observation]) -> int | None:
    """Number of the next trial whose whole training step must be timed, because its step time was extrapolated from
    short steps (with fewer micro batches); None if no such trial is left.

    If the verdict is that the machine is too busy, nothing is timed, as other programs would disturb the check as well.
    """
    if result.verdict is Verdict.TOO_BUSY:
        return None
    trials = _compared(result, history)
    return next((obs.number for obs in trials if obs.whole_step_run is None and _extended_runs(obs)), None)


def checked(result: StudyResult, history: Sequence[Observation], field: Finalists) -> StudyResult:
    """Add to a result the timed whole steps of the trials that it compares. The verdict becomes undecided if a step
    time that was extrapolated from short steps (with fewer micro batches) proves wrong."""
    runs = [(obs, run) for obs in _compared(result, history) if (run := obs.whole_step_run) is not None]
    checks = tuple(_check(obs, run) for obs, run in runs if _extended_runs(obs))
    if not checks:
        return result
    off = [check for check in checks if not check.is_confirmed and not check.is_disturbed]
    turned = _turned(result, runs) if not off else ()
    notes = (*result.notes, _note(checks), *map(_off_note, off), *turned)
    result = result.model_copy(update={"whole_steps": checks, "notes": notes})
    return _undecided(result, field) if (off or turned) and result.final_comparison is not None else result


def _turned(result: StudyResult, runs: Sequence[tuple[Observation, Measurement]]) -> tuple[str, ...]:
    """Note for a confirmed winner that is slower than the baseline when whole steps are timed; empty otherwise. Each
    step time extrapolated from short steps (with fewer micro batches) may be up to 3 % off, so a comparison of two may
    be 6 % off."""
    speeds = {obs.number: run.tokens_per_s_per_gpu for obs, run in runs if run.disturbed is None}
    best, baseline = (speeds.get(side.trial_number) for side in (result.best, result.baseline))
    if result.verdict is not Verdict.CONFIRMED or best is None or baseline is None or best >= baseline:
        return ()
    return (
        f"whole steps put trial {result.baseline.trial_number} ({rate(baseline)} tokens/s/GPU) before trial "
        f"{result.best.trial_number} ({rate(best)}), against the pairs of extended step times, so that these decide "
        "nothing; run the study with budget.short_steps false",
    )


def _compared(result: StudyResult, history: Sequence[Observation]) -> list[Observation]:
    """Trials that a result compares: the recommended one, the baseline, and a candidate that did not win."""
    contenders = (result.best, result.baseline, result.candidate)
    numbers = {contender.trial_number for contender in contenders if contender is not None}
    return [obs for obs in history if obs.number in numbers]


def _extended_runs(obs: Observation) -> list[Measurement]:
    """Runs on which a trial's figures rest and whose step times were extrapolated from short steps (with fewer micro
    batches)."""
    runs = obs.validation_runs or ((obs.measurement,) if obs.measurement is not None else ())
    return [run for run in runs if run.is_extended]


def _check(obs: Observation, whole: Measurement) -> WholeStepCheck:
    extended = _extended_runs(obs)
    times = [run.step_time_s for run in extended]
    short = extended[0].short_steps
    assert short is not None and short.accumulations is not None
    error = median(times) / whole.step_time_s - 1
    by_chance = _MOST_DEVIATIONS * stdev(map(math.log, times)) if len(times) > 1 else 0.0
    return WholeStepCheck(
        trial_number=obs.number,
        accumulations=short.accumulations,
        micro_batches=whole.gradient_accumulation,
        step_time_s=whole.step_time_s,
        extended_step_time_s=median(times),
        extension_error=error,
        is_confirmed=abs(error) <= max(MOST_OFF, by_chance),
        is_disturbed=whole.disturbed is not None,
    )


def _undecided(result: StudyResult, field: Finalists) -> StudyResult:
    """Change a result's verdict to undecided. A user's baseline stays the recommendation; between two documented
    defaults the faster one does."""
    comparison = result.final_comparison
    assert comparison is not None
    ratios = comparison.ratios
    update: dict[str, object] = {
        "verdict": Verdict.UNDECIDED,
        "undecided": OpenVerdict(
            pairs=len(ratios),
            won_pairs=sum(ratio > 1 for ratio in ratios),
            # More pairs of the same times would repeat the same error.
            more_pairs=None,
            is_extension_off=True,
            disturbed_pairs=comparison.disturbed_pairs,
            disturbed_counted_runs=comparison.disturbed_counted_runs,
            ended_by=None if result.undecided is None else result.undecided.ended_by,
        ),
    }
    if result.candidate is None and not field.defaults and result.best != result.baseline:
        update |= {"best": result.baseline, "candidate": result.best}
    return result.model_copy(update=update)


def _note(checks: Sequence[WholeStepCheck]) -> str:
    """Sentence on how the step times were measured, and by how much the extrapolation from short steps was off."""
    rows = "; ".join(
        f"trial {check.trial_number} from {check.accumulations[0]} and {check.accumulations[1]} of "
        f"{check.micro_batches} micro batches, {_error(check)}"
        for check in checks
    )
    return f"step times of search and pairs were extended from short steps, and whole steps timed once: {rows}"


def _error(check: WholeStepCheck) -> str:
    percent = 100 * check.extension_error
    side = "above" if percent > 0 else "below"
    return f"{abs(percent):.1f} % {side} the whole step" + (" (disturbed)" if check.is_disturbed else "")


def _off_note(check: WholeStepCheck) -> str:
    return (
        f"trial {check.trial_number}: its whole step took {check.step_time_s:.3g} s, and {check.extended_step_time_s:.3g} s "
        f"by its short steps: more than {MOST_OFF:.0%} apart, so that its pairs decide nothing; run the study "
        "with budget.short_steps false"
    )
