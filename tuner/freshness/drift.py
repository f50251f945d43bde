"""Has a machine become slower at the same work? A one-sided CUSUM on log speeds (Page, Biometrika 41, 1954).

The reference is what the configuration did when it was measured. Each canary adds how far it falls below that, in units
of the reference's own spread, less an allowance; what adds up to more than the limit is drift. Allowance 1 is the one
tuned to a shift of two spreads (half the shift, Lucas, J. Quality Technology 14, 1982), and the limit makes a single canary 2.6
spreads down enough: 13 % at the least spread.

A run is disturbed now and then, for the length of a burst; what disturbs it slows it down. So a canary that would raise
the alarm is run again at once, up to `MOST_RUNS` times, and counts as the fastest of its runs.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

LEAST_SPREAD = 0.05
"""Of log speeds. Runs of one afternoon lie closer together than those of a month."""
ALLOWANCE, LIMIT = 1.0, 1.6
MOST_RUNS = 5
FEWEST = 3
"""Runs that make a reference."""


@dataclass(frozen=True)
class Reference:
    """What is normal."""

    level: float
    """Median of the log speeds."""
    spread: float


def reference(speeds: Sequence[float]) -> Reference | None:
    """From tokens_per_s_per_gpu of runs that were normal; None for too few."""
    if len(speeds) < FEWEST:
        return None
    logs = [math.log(speed) for speed in speeds]
    level = median(logs)
    return Reference(level, max(LEAST_SPREAD, 1.4826 * median(abs(value - level) for value in logs)))


def sum_of(known: Reference, canaries: Sequence[float]) -> float:
    """The CUSUM after canaries with these speeds, in order."""
    total = 0.0
    for speed in canaries:
        total = max(0.0, total + (known.level - math.log(speed)) / known.spread - ALLOWANCE)
    return total


def alarm_below(known: Reference, earlier: Sequence[float]) -> float:
    """tokens_per_s_per_gpu below which the next canary is drift, after earlier ones that were not."""
    return math.exp(known.level - (ALLOWANCE + LIMIT - sum_of(known, earlier)) * known.spread)


def change(known: Reference, speed: float) -> float:
    """Speed over the reference's: 0.8 is 20 % slower."""
    return speed / math.exp(known.level)
