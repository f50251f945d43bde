"""How well a run's step time must be known: as well as the decision it is for needs, and no better.

A run that is clearly slower than what it competes with need not say by how much. What is told here is a range of step times;
the run goes on while the interval of its windows overlaps it (`MeasurePlan.undecided_s`), so one that is far from it ends
after the fewest windows.
"""

import math
from collections.abc import Container, Iterable, Mapping
from statistics import median

from shardtune.api_schemas.trials.measurements import StepTimeRange
from shardtune.api_schemas.trials.trial import TrialState
from shardtune.tuner.history import Observation
from shardtune.tuner.verdict.final_comparison import NEAR, NextRun, ValidationRun


def of_search(history: Iterable[Observation], infeasible: Container[int] = ()) -> StepTimeRange | None:
    """A trial that will not be promoted is known to be slower, no more; None while nothing is measured.

    What is over the limit, cannot be true or trains something else (`infeasible`, by number) sets no pace: it is not promoted
    itself.
    """
    measured = [
        obs.measurement.step_time_s
        for obs in history
        if obs.state is TrialState.COMPLETE and obs.measurement is not None and obs.number not in infeasible
    ]
    return (0.0, min(measured) / NEAR) if measured else None


def of_block(
    due: NextRun, searched: Mapping[int, float], fresh: Iterable[ValidationRun], tokens_per_step_per_gpu: float
) -> StepTimeRange | None:
    """Around the middle of the block's two fastest arms, by what ran before it; None for an arm alone.

    `searched`: tokens_per_s_per_gpu of the arms' search runs. Each arm of a block gets the same range, so that under "no
    difference" their runs are drawn alike and the sign of a pair stays a fair coin.
    """
    if len(due.arms) < 2:
        return None
    known = {trial: [searched[trial]] for trial in due.arms}
    for run in fresh:
        if run.block < due.block:
            known.get(run.trial, []).append(run.tokens_per_s_per_gpu)
    first, second, *_ = sorted(tokens_per_step_per_gpu / median(speeds) for speeds in known.values())
    middle, width = math.sqrt(first * second), math.sqrt(NEAR)
    return middle * width, middle / width
