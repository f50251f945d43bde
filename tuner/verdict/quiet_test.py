"""Quiet test: whether fewer pairs than the sign test needs settle a comparison, because the machine is quiet.

`tuner.verdict.paired_test` uses the signs of the log-ratios alone, and needs 7 pairs whatever the machine does. Where
the log-ratios lie close together, their size says more: after 3 to 6 pairs a Student interval of their mean may already
lie above no gain (the challenger is faster), or rule out a gain that is worth a change (it is not).

A Student interval assumes more than a coin does, so the test speaks only where

- no run of the pairs was disturbed, and no pair was uneven;
- every run states how far its own windows lie apart, which bounds the spread of the pairs from below;
- the challenger ran first in a pair and second in another. Drift then helps it in one and hurts it in the other.

Under equal configurations and Gaussian noise the challenger wins here with probability `ERROR` at most, over all looks,
on top of the sign test's. Under any other noise that treats both alike, all 3 pairs must show about the same gain: where
runs have two speeds, that is every run of the challenger fast and every run of the baseline slow, 1 of 64 at most.
docs/decisions/0012-quiet-test.md has the alternatives.
"""

import math
from collections.abc import Sequence
from statistics import fmean, median, stdev

from shardtune.api_schemas.studies.study_result import Speedup
from shardtune.tuner.verdict.comparison_blocks import Pair
from shardtune.tuner.verdict.paired_test import WORTHWHILE, Decision
from shardtune.tuner.verdict.undecided import RULED_OUT

ERROR = 0.004
"""Probability that the quiet test (for machines without load from other programs) ever declares an equally fast
challenger faster. It assumes Gaussian noise and counts all repeated looks."""
_QUANTILES = {3: 15.764, 4: 10.215, 5: 8.610, 6: 6.869}
"""Quantile of Student's t by number of pairs. Equal configurations exceed it with probabilities of 0.2, 0.1, 0.05 and
0.05 %, which add up to `ERROR`."""
FEWEST_PAIRS, MOST_PAIRS = min(_QUANTILES), max(_QUANTILES)
"""Minimum and maximum number of pairs that the quiet test (for machines without load from other programs) judges; from
7 pairs on, the sign test decides."""
_FUTILE_QUANTILES = {3: 6.965, 4: 4.541, 5: 3.747, 6: 3.365}
"""Quantile of Student's t by number of pairs, exceeded with a probability of 1 %: bounds the gain that may have been
missed."""
FUTILE_GAIN = 0.05
"""Gain in speed that the pairs must rule out before the quiet test (for machines without load from other programs) ends
them without a winner: a study on such a machine must find a gain of this size."""


def decide(pairs: Sequence[Pair], uneven_pairs: int = 0) -> Decision:
    """Decide from the log speed ratios of the pairs whether the challenger is faster. The result is `open` as well if
    the quiet test (for machines without load from other programs) does not apply to these pairs."""
    interval = log_interval(pairs) if uneven_pairs == 0 else None
    if interval is None:
        return "open"
    lowest, highest = interval
    if lowest > 0:
        return "faster"
    ratios = [pair.log_ratio for pair in pairs]
    is_small = median(ratios) <= math.log1p(WORTHWHILE) and highest < math.log1p(RULED_OUT)
    largest_gain = fmean(ratios) + _FUTILE_QUANTILES[len(pairs)] * _standard_error(pairs)
    return "not_shown" if is_small and largest_gain < math.log1p(FUTILE_GAIN) else "open"


def log_interval(pairs: Sequence[Pair]) -> tuple[float, float] | None:
    """Interval of the mean log speed ratio that the quiet test (for machines without load from other programs) does not
    reject; None where the test does not apply to these pairs."""
    quantile = _QUANTILES.get(len(pairs))
    if quantile is None or not _is_quiet(pairs):
        return None
    mean, half_width = fmean(pair.log_ratio for pair in pairs), quantile * _standard_error(pairs)
    return mean - half_width, mean + half_width


def speedup(pairs: Sequence[Pair]) -> Speedup | None:
    """Speed-up by the quiet test (for machines without load from other programs): the median speed ratio, with the
    interval of the mean; None where the test does not apply to these pairs."""
    interval = log_interval(pairs)
    if interval is None:
        return None
    return Speedup(
        value=math.exp(median(pair.log_ratio for pair in pairs)),
        ci95=(math.exp(interval[0]), math.exp(interval[1])),
        pairs=len(pairs),
        ratios=tuple(math.exp(pair.log_ratio) for pair in pairs),
    )


def _is_quiet(pairs: Sequence[Pair]) -> bool:
    is_measured = all(load.spread for pair in pairs for load in pair.loads)
    has_both_orders = {pair.is_challenger_first for pair in pairs} == {True, False}
    # Clocks that fall during a comparison are no noise of the kind that the test assumes.
    is_throttled = any(load.is_throttled for pair in pairs for load in pair.loads)
    return is_measured and has_both_orders and not is_throttled and not any(pair.disturbed_runs for pair in pairs)


def _standard_error(pairs: Sequence[Pair]) -> float:
    """Standard error of the mean of the pairs' log speed ratios."""
    # Three ratios may agree by luck, but not better than the runs' own windows allow. Of three windows, the fewest of a
    # run, the half-width of 95 % is 4.3 standard errors.
    within_runs = math.sqrt(fmean(sum((load.spread or 0.0) ** 2 for load in pair.loads) for pair in pairs)) / 4.3
    return max(stdev(pair.log_ratio for pair in pairs), within_runs) / math.sqrt(len(pairs))
