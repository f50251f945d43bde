"""Drift: whether a machine became slower at the same work, detected by a one-sided cumulative sum (CUSUM) on log speeds
(Page, Biometrika 41, 1954).

The reference is the speed of the configuration when it was measured. Each canary (a repeated run of that configuration)
adds its shortfall from the reference, in units of the reference's own spread, less an allowance; a sum above the limit
is drift. Allowance 1 is tuned to a shift of two spreads (half the shift, Lucas, J. Quality Technology 14, 1982). With
this limit a single canary that is 2.6 spreads too slow is enough: 13 % at the least spread.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

# Runs of one afternoon lie closer together than those of a month.
LEAST_SPREAD = 0.05
"""Lower bound on the standard deviation of log speeds that the drift check assumes."""
ALLOWANCE, LIMIT = 1.0, 1.6
# Bursts of other work disturb a run and slow it down, so a canary that would raise the alarm is run again at once.
MOST_RUNS = 5
"""Maximum number of runs of one canary (a repeated run of a known configuration); the fastest of the runs counts."""
FEWEST = 3
"""Minimum number of canary runs (repeated runs of a known configuration) from which an expected speed is computed."""


@dataclass(frozen=True)
class ExpectedSpeed:
    """Expected speed of a canary (a repeated run of a known configuration), with its spread."""

    level: float
    """Median of the log speeds of the canary's earlier undisturbed runs."""
    spread: float


def expected_speed(speeds: Sequence[float]) -> ExpectedSpeed | None:
    """Expected speed of a canary (a repeated run of a known configuration), from the tokens_per_s_per_gpu of its normal
    runs; None for too few runs."""
    if len(speeds) < FEWEST:
        return None
    logs = [math.log(speed) for speed in speeds]
    level = median(logs)
    return ExpectedSpeed(level, max(LEAST_SPREAD, 1.4826 * median(abs(value - level) for value in logs)))


def cusum(expected: ExpectedSpeed, canaries: Sequence[float]) -> float:
    """Cumulative sum (CUSUM) of the slow-down that a machine's canary runs (repeated runs of a known configuration)
    show; `canaries` are their speeds, in order."""
    total = 0.0
    for speed in canaries:
        total = max(0.0, total + (expected.level - math.log(speed)) / expected.spread - ALLOWANCE)
    return total


def alarm_below(expected: ExpectedSpeed, earlier: Sequence[float]) -> float:
    """Speed (tokens_per_s_per_gpu) below which the next canary run (repeated run of a known configuration) shows drift.
    `earlier`: speeds of the earlier runs, which showed none."""
    return math.exp(expected.level - (ALLOWANCE + LIMIT - cusum(expected, earlier)) * expected.spread)


def relative_speed(expected: ExpectedSpeed, speed: float) -> float:
    """Measured speed divided by the expected speed: 0.8 is 20 % slower."""
    return speed / math.exp(expected.level)
