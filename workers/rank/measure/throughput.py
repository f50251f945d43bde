"""Rules that end a trial's warm-up and timing: pure arithmetic on step times."""

import math
import statistics
from collections.abc import Sequence

from shardtune.api_schemas.trials.measure_plan import MeasurePlan

# Two-sided 95 % quantiles of Student's t for 1, 2, … degrees of freedom.
_T_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
_MOST_STEPS = 100
"""Maximum number of steps in a timed window (a group of steps timed together) that is enlarged because its steps are
short. All batches of a window are made before it begins, and take memory."""
_FEWEST_TO_PRUNE = 3
"""Minimum number of timed steps before a trial may be pruned. The first recorded steps, which compile and allocate, do
not count."""
_STEADY_STEPS = 3
_STEADY = 0.05
"""Relative spread of consecutive step times below which the steps count as steady."""


def relative_half_width(step_times: Sequence[float]) -> float:
    """Half the width of the 95 % confidence interval of the mean step time, divided by that mean. Infinite for fewer
    than two timed windows (groups of steps timed together)."""
    if len(step_times) < 2:
        return float("inf")
    quantile = _T_95[min(len(step_times) - 1, len(_T_95)) - 1]
    half_width: float = quantile * statistics.stdev(step_times) / len(step_times) ** 0.5 / statistics.fmean(step_times)
    return half_width


def is_steady(step_times: Sequence[float]) -> bool:
    """Whether the last three steps took the same time within 5 %, which shows that caches, allocators and clocks have
    settled."""
    last = step_times[-_STEADY_STEPS:]
    return len(last) == _STEADY_STEPS and max(last) - min(last) <= _STEADY * min(last)


def is_hopeless(step_times: Sequence[float], plan: MeasurePlan) -> bool:
    """Whether a trial can be pruned because its steps certainly take longer than the measurement plan allows. This is
    so if every measured step and the lower end of the confidence interval of their mean exceed that time."""
    if plan.prune_above_s is None or len(step_times) < _FEWEST_TO_PRUNE:
        return False
    lowest = statistics.fmean(step_times) * (1 - relative_half_width(step_times))
    return min(lowest, *step_times) > plan.prune_above_s


def steps_per_window(warm_up_s: Sequence[float], plan: MeasurePlan) -> int:
    """Number of steps in a timed window (a group of steps timed together). It is the plan's number, raised or lowered
    so that the plan's minimum number of windows fits its time limits."""
    one_step_windows_s = plan.min_windows * statistics.median(warm_up_s[-3:])
    fewest, largest = math.ceil(plan.min_measure_s / one_step_windows_s), int(plan.max_measure_s / one_step_windows_s)
    return max(1, min(max(plan.window_steps, min(fewest, _MOST_STEPS)), largest))


def reused_steps(warm_up_s: Sequence[float], window_steps: int, plan: MeasurePlan) -> int:
    """Number of warm-up steps, counted from the last, that are used as timed windows, too. It is 0 unless the warm-up
    was steady and either a window is reduced to a single slow step, or the run times short steps (with fewer micro
    batches than the whole step)."""
    # A window of short steps holds one pair of them, as the warm-up's did.
    if plan.short_steps is not None and plan.short_steps.accumulations is not None:
        return min(plan.min_windows, _STEADY_STEPS) if is_steady(warm_up_s) else 0
    # A steady warm-up has timed three such windows already. Where a window holds several steps, losses stay on the
    # device between them, so a warm-up step is another figure.
    is_shortened = window_steps == 1 < plan.window_steps
    return min(plan.min_windows, _STEADY_STEPS) if is_shortened and is_steady(warm_up_s) else 0


def is_enough(step_times: Sequence[float], window_steps: int, plan: MeasurePlan, spent_s: float | None = None) -> bool:
    """Whether timing can end, because the windows timed so far (groups of `window_steps` steps each) are as precise as
    the measurement plan requires, or because the plan allows no more.

    `spent_s`: seconds that the windows really took, if step times were extrapolated from steps of fewer micro batches;
    if None, they are computed from the step times.
    """
    window_count = len(step_times)
    if window_count < plan.min_windows:
        return False
    spent = sum(step_times) * window_steps if spent_s is None else spent_s
    mean = statistics.fmean(step_times)
    return (
        window_count >= plan.max_windows
        or spent >= plan.max_measure_s
        or plan.is_precise_enough(mean, relative_half_width(step_times) * mean)
    )
