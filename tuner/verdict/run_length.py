"""Length of a run: the precision of the measured step time that the decision based on the run needs, and no more.

A run that is clearly slower than its competitors need not measure by how much. Each function returns a range of step
times. The run continues while the interval of its windows overlaps that range (`MeasurePlan.undecided_s`), so a run far
from the range ends after the fewest windows.
"""

import math
from collections.abc import Container, Iterable, Mapping
from statistics import median

from shardtune.api_schemas.trials.measure_plan import MeasurePlan, StepTimeRange
from shardtune.api_schemas.trials.trial import TrialState
from shardtune.tuner.history import Observation
from shardtune.tuner.verdict.comparison_blocks import NEAR_FRACTION, NextRun, ValidationRun


def search_range(history: Iterable[Observation], infeasible: Container[int] = ()) -> StepTimeRange | None:
    """Range of step times (s) within which a search run must not be cut short: up to the slowest step time that may
    still reach the final comparison. None while no trial is measured undisturbed.

    `infeasible`: numbers of trials that are left out.
    """
    # A trial over the memory limit, or with other losses, sets no pace: it cannot reach the final comparison itself. A
    # disturbed run sets none either: it ends no other run, and "certainly slower" needs an undisturbed reference.
    measured = [
        obs.measurement.step_time_s
        for obs in history
        if obs.state is TrialState.COMPLETE
        and obs.measurement is not None
        and not obs.is_disturbed
        and obs.number not in infeasible
    ]
    return (0.0, min(measured) / NEAR_FRACTION) if measured else None


def block_range(
    due: NextRun,
    search_speeds: Mapping[int, float],
    validation_runs: Iterable[ValidationRun],
    tokens_per_step_per_gpu: float,
) -> StepTimeRange | None:
    """Range of step times (s) within which a validation run must not be cut short: around the middle between the two
    fastest trials of its comparison block, by their earlier runs. None for a block of one trial.

    `search_speeds`: tokens_per_s_per_gpu of the search runs of the block's trials.
    """
    if len(due.arms) < 2:
        return None
    # Each arm of a block gets the same range: where the arms are alike, their runs are drawn alike, and the sign of a
    # pair stays a fair coin.
    speeds_by_trial = {trial: [search_speeds[trial]] for trial in due.arms}
    for run in validation_runs:
        if run.comparison_block < due.comparison_block:
            speeds_by_trial.get(run.trial, []).append(run.tokens_per_s_per_gpu)
    first, second, *_ = sorted(tokens_per_step_per_gpu / median(speeds) for speeds in speeds_by_trial.values())
    centre, half_width = math.sqrt(first * second), math.sqrt(NEAR_FRACTION)
    return centre * half_width, centre / half_width


def measure_plan(default_plan: MeasurePlan, undecided_s: StepTimeRange | None, may_prune: bool) -> MeasurePlan:
    """Measurement plan for a run whose step time must be measured precisely if it lies within `undecided_s`. With
    `may_prune` the run also ends early once its steps are certainly slower than this range."""
    update: dict[str, object] = {"undecided_s": undecided_s}
    if may_prune and undecided_s is not None:
        update["prune_above_s"] = undecided_s[1]
    return default_plan.model_copy(update=update)
