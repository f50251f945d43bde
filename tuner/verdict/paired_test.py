"""Paired test: whether the challenger is faster than the baseline, by a sequential sign test on paired log-ratios.

Each pair is one validation run of the challenger and one of the baseline, in an order drawn at random. If the
configuration made no difference, that draw alone would decide the sign of a pair's log-ratio. The sign is then a fair
coin, independent of all other pairs, whatever drift, bursts of other work or heavy tails the machine adds
(randomisation inference: Fisher, The Design of Experiments, 1935, §21). So the number of pairs lost is a fair random
walk, and a boundary for it is exact for any number of looks. A test on the mean and the variance is not: one disturbed
pair inflates both.

The boundary spends the error by stages (Lan & DeMets, Biometrika 70, 1983): winning with at most m pairs lost is
allowed from the first number of pairs on at which the total probability of ever winning is at most `ERROR` · (1 −
2^−(m+1)). That gives 7 pairs without a loss, 10 with one, 13 with two, 17, 20, 23, …
"""

import math
from collections.abc import Sequence
from functools import cache
from statistics import median
from typing import Literal

from shardtune.api_schemas.studies.budget import MOST_PAIRS
from shardtune.api_schemas.studies.study_result import Speedup

ERROR = 0.025
"""Probability that the test ever declares an equal or slower challenger faster, over all repeated looks; the 95 %
interval has the same error on each side."""

WORTHWHILE = 0.02
"""Smallest relative gain in speed that justifies changing a running configuration; a challenge (comparison of a new
candidate with the running configuration) ignores smaller gains."""

Decision = Literal["faster", "open", "not_shown"]


@cache
def boundary() -> tuple[int, ...]:
    """Largest number of lost pairs with which the challenger wins. Element n applies after n pairs (0 to `MOST_PAIRS`);
    −1 means that no win is possible yet."""
    allowed, spent = -1, 0.0
    still_open = {0: 1.0}
    """Probability of each number of lost pairs if either side wins a pair by chance (a fair coin); sequences that have
    already won are left out."""
    boundaries = [allowed]
    for _ in range(MOST_PAIRS):
        tossed = [(lost + more, chance / 2) for lost, chance in still_open.items() for more in (0, 1)]
        still_open = {}
        for lost, chance in tossed:
            still_open[lost] = still_open.get(lost, 0.0) + chance
        # The number of lost pairs only grows, so a walk can win only at a look at which one more loss is allowed.
        wins = still_open.get(allowed + 1, 0.0)
        if spent + wins <= ERROR * (1 - 0.5 ** (allowed + 2)):
            allowed, spent = allowed + 1, spent + wins
            still_open.pop(allowed, None)
        boundaries.append(allowed)
    return tuple(boundaries)


def decide(log_ratios: Sequence[float], most_pairs: int) -> Decision:
    """Decide from the pairs so far whether the challenger is faster; `not_shown` means that an interval exists and that
    no win is possible any more within `most_pairs` pairs."""
    lost, allowed = sum(ratio <= 0 for ratio in log_ratios), boundary()[len(log_ratios)]
    if lost <= allowed:
        return "faster"
    can_win = len(log_ratios) < most_pairs and lost <= boundary()[most_pairs]
    return "open" if can_win or allowed < 0 else "not_shown"


def speedup(log_ratios: Sequence[float]) -> Speedup | None:
    """Speed-up of the challenger over the baseline: the median of the paired speed ratios with a 95 % interval that
    stays valid under repeated looks (sequential testing). None with too few pairs.

    The interval contains the ratios that the test rejects in neither direction: those between two order statistics
    (Conover, Practical Nonparametric Statistics, 1999, §3.2). `decide` returns faster exactly when the interval is
    above 1.
    """
    allowed = boundary()[len(log_ratios)]
    if allowed < 0:
        return None
    ordered = sorted(log_ratios)
    return Speedup(
        value=math.exp(median(ordered)),
        ci95=(math.exp(ordered[allowed]), math.exp(ordered[-1 - allowed])),
        pairs=len(ordered),
        ratios=tuple(map(math.exp, log_ratios)),
    )
