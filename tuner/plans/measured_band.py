"""Band of a speed that a study measured: it comes from the differences between runs, not from a prediction's error."""

import math

from shardtune.api_schemas.base import Band
from shardtune.api_schemas.studies.study_result import Contender
from shardtune.tuner.projection.structural import learnt

_RANGE = (
    1.128, 1.693, 2.059, 2.326, 2.534, 2.704, 2.847, 2.970, 3.078, 3.173, 3.258, 3.336, 3.407, 3.472, 3.532, 3.588,
    3.640, 3.689, 3.735,
)  # fmt: skip
"""Expected difference between the largest and the smallest of 2, 3, … values of a normal distribution, in standard
deviations. The last one serves for more values, which makes the band wider, never narrower."""
_T_90 = (6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812, 1.796, 1.782, 1.771, 1.761, 1.753)
"""Two-sided 90 % quantiles of Student's t for 1, 2, … degrees of freedom; the last one serves for more."""


def measured_band(side: Contender, *, is_disturbed: bool = False) -> Band:
    """Return the speed of a measured configuration with the 90 % prediction interval for one more run like its own
    (Student), in tokens per second and GPU.

    The spread of a single run says nothing about others: the interval is then that of two published runs of the same
    size. So it is at least, if other programs disturbed the runs (`is_disturbed`).
    """
    unknown = learnt().half_width(0.0)
    half_width = unknown if side.spread is None or side.runs < 2 else _half_width(*side.spread, side.runs)
    if is_disturbed:
        half_width = max(half_width, unknown)
    speed, ratio = side.tokens_per_s_per_gpu, math.exp(half_width)
    return Band(expected=speed, low=speed / ratio, high=speed * ratio)


def _half_width(slowest: float, fastest: float, runs: int) -> float:
    """Half-width of the interval in logarithm of speed, from the slowest and the fastest of a number of runs."""
    # A result states the range of the runs' speeds, not each of them.
    deviation = math.log(fastest / slowest) / _RANGE[min(runs - 2, len(_RANGE) - 1)]
    return _T_90[min(runs - 2, len(_T_90) - 1)] * deviation * math.sqrt(1.0 + 1.0 / runs)


def scaled(band: Band, factor: float) -> Band:
    """Return a value and its band, multiplied by a factor."""
    return Band(expected=band.expected * factor, low=band.low * factor, high=band.high * factor)
