"""Fresh runs of baseline and challenger in alternating pairs, and what their ratios say.

Pairs cancel slow drift of the machine; fresh runs cancel the luck by which the search picked the challenger.
"""

import math
from collections.abc import Sequence
from statistics import fmean, stdev

from api_schemas.measurements import Measurement
from api_schemas.studies import Speedup

PAIRS = 5

T_975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""Student's t, 97.5 %, for 1 to 9 degrees of freedom."""


def next_trial(baseline: int, challenger: int, done: Sequence[int]) -> int | None:
    """Which of the two to run next, None when five pairs are complete.

    Order AB BA AB BA AB. `done` are the trial numbers of finished runs in order.
    """
    counts = {baseline: 0, challenger: 0}
    for number in done:
        if number in counts:
            counts[number] += 1
    pair = min(counts.values())
    if pair >= PAIRS:
        return None
    first, second = (baseline, challenger) if pair % 2 == 0 else (challenger, baseline)
    return second if counts[first] > pair else first


def speedup(baseline: Sequence[Measurement], challenger: Sequence[Measurement]) -> Speedup:
    """Geometric mean of challenger / baseline over the pairs, with its 95 % t-interval on log ratios.

    Raises:
        ValueError: fewer than two pairs.
    """
    pairs = list(zip(baseline, challenger, strict=False))[: len(T_975) + 1]
    if len(pairs) < 2:
        raise ValueError(f"pairs ({len(pairs)}) must be at least 2 for an interval; run more confirmation runs")
    ratios = [math.log(new.tokens_per_s_per_gpu / old.tokens_per_s_per_gpu) for old, new in pairs]
    mean = fmean(ratios)
    half = T_975[len(ratios) - 2] * stdev(ratios) / math.sqrt(len(ratios))
    return Speedup(value=math.exp(mean), ci95=(math.exp(mean - half), math.exp(mean + half)), pairs=len(ratios))
