"""Difference of the losses of two recipes over the same data, with its interval.

Both train from the same initial weights on the same batches, so that the losses of one step share what that batch is
like: their difference has far less noise than either. Differences of neighbouring steps depend on each other, since a
weight that lags does so for many steps. Means over batches of many steps depend on each other much less, which is the
method of batch means: the interval is Student's, of the mean of `BATCHES` means (Law & Kelton, Simulation Modeling and
Analysis, section 9.5.3).

Of differences that depend on each other over about ten steps, 93 of 100 such intervals contain the mean, and of independent
ones 95 (simulated; over twenty steps, 89).

The interval speaks of this data and these steps. Where the difference still grows or shrinks, the means differ by that
too, and the interval is wider.
"""

import math
from collections.abc import Sequence
from statistics import fmean, stdev

from shardtune.api_schemas.studies.recipes import FEWEST_LOSS_STEPS, LossComparison, LossVerdict

BATCHES = 5
"""Number of batches of consecutive steps whose mean losses are compared. A few long batches are used because their
means hardly depend on each other."""
_QUANTILE = 2.776
"""Quantile of Student's t with `BATCHES` - 1 degrees of freedom for a two-sided interval of 95 %."""


def compare(losses: Sequence[float], stated: Sequence[float], most_difference: float) -> LossComparison:
    """Compare the losses of a considered recipe (other precision or optimizer) with those of the stated recipe, over
    the last half of the steps that both trained.

    Raises:
        ValueError: fewer steps than `FEWEST_LOSS_STEPS`.
    """
    steps = min(len(losses), len(stated))
    if steps < FEWEST_LOSS_STEPS:
        raise ValueError(f"{steps} steps are too few to compare losses; {FEWEST_LOSS_STEPS} are needed")
    compared = steps // 2 // BATCHES * BATCHES
    recipe, other = list(losses[:steps])[-compared:], list(stated[:steps])[-compared:]
    differences = [mine - theirs for mine, theirs in zip(recipe, other, strict=True)]
    size = compared // BATCHES
    means = [fmean(differences[at : at + size]) for at in range(0, compared, size)]
    difference, half_width = fmean(means), _QUANTILE * stdev(means) / math.sqrt(BATCHES)
    low, high = difference - half_width, difference + half_width
    return LossComparison(
        steps=steps,
        compared_steps=compared,
        loss=fmean(recipe),
        stated_loss=fmean(other),
        difference=difference,
        interval=(low, high),
        most_difference=most_difference,
        verdict=_verdict(low, high, most_difference),
    )


def _verdict(low: float, high: float, most_difference: float) -> LossVerdict:
    if low > most_difference:
        return LossVerdict.WORSE
    return LossVerdict.AS_WELL if high <= most_difference else LossVerdict.UNDECIDED
