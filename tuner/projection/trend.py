"""Trend of one configuration over its measured sizes: how far computation and communication are from their predictions,
and how both change with each doubling of the GPUs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardtune.tuner.projection.sizes import MeasuredSize, PredictedSize

Array = NDArray[np.float64]

_COMMUNICATION_SIGMA = 1.0
"""Prior standard deviation of the logarithm of the factor between true and predicted exposed communication (the part
that computation does not hide). It is wide, since a small error in the hidden part changes the exposed part by a
factor."""
_LARGEST_LOG_FACTOR, _SMALLEST_LOG_FACTOR = 1.5, -3.0
_DRIFT_SIGMA = 0.01
"""Prior standard deviation of the slow-down at each doubling of the GPUs, around its mean in published runs."""
_NOISE_SIGMA = 0.01
"""Standard deviation of the logarithm of one measured step time."""
_WALK_SIGMA = 0.015
"""Standard deviation of the unexplained difference in log time between two sizes, one of which has twice the GPUs.
Because of it, a measured size that is nearer to the target counts more."""
_ITERATIONS = 8
_DEVIATIONS = 1.645
"""Number of standard deviations on either side of the mean that contain 90 % of a normal distribution."""
_FLAT = 1e-6


@dataclass(frozen=True)
class Forecast:
    """Step time that is projected for the target, and how uncertain it is because of communication."""

    seconds: float
    communication_width: float
    """Part of the 90 % band's half-width (in logarithm of time) that comes from not knowing how far predicted
    communication time is off."""


def forecast(anchors: Sequence[MeasuredSize], target: PredictedSize, drift: float) -> Forecast:
    """Project the step time to the target from a configuration's measured sizes. The fit has a factor on all time, a
    factor on communication, and a slow-down with each doubling of the GPUs.

    `drift`: logarithm by which published runs slow down with each doubling, beyond their prediction.
    """
    sizes = [*(anchor.predicted for anchor in anchors), target]
    communication = np.array([size.communication_s for size in sizes])
    remaining = np.array([size.seconds for size in sizes]) - communication
    doublings = np.log2([size.gpus / sizes[0].gpus for size in sizes])
    measured = np.log([anchor.seconds for anchor in anchors])
    # Neighbouring sizes share what no term explains.
    shared = _WALK_SIGMA**2 * np.minimum.outer(doublings, doublings)
    inverse = np.linalg.inv(shared[:-1, :-1] + _NOISE_SIGMA**2 * np.eye(len(anchors)))
    precision = np.diag([_FLAT, 1.0 / _COMMUNICATION_SIGMA**2, 1.0 / _DRIFT_SIGMA**2])
    factor, terms = 0.0, np.zeros(3)
    table = offsets = np.zeros(0)
    posterior = precision
    for _ in range(_ITERATIONS):
        table, offsets = _linearise(remaining, communication, doublings, factor)
        measured_rows, residual = table[:-1], measured - offsets[:-1]
        posterior = measured_rows.T @ inverse @ measured_rows + precision
        terms = np.linalg.solve(
            posterior, measured_rows.T @ inverse @ residual + precision @ np.array([0.0, 0.0, drift])
        )
        factor = min(max(float(terms[1]), _SMALLEST_LOG_FACTOR), _LARGEST_LOG_FACTOR)
    unexplained = measured - offsets[:-1] - table[:-1] @ terms
    mean = float(offsets[-1] + table[-1] @ terms + shared[-1, :-1] @ inverse @ unexplained)
    spread = math.sqrt(float(np.linalg.inv(posterior)[1, 1]))
    nearest = int(np.argmax(doublings[:-1]))
    open_share = abs(float(table[-1, 1] - table[nearest, 1]))
    return Forecast(math.exp(mean), _DEVIATIONS * spread * open_share)


def _linearise(remaining: Array, communication: Array, doublings: Array, factor: float) -> tuple[Array, Array]:
    """Linearise the logarithm of step times around one value of the communication factor: coefficients of the shared
    factor, the communication factor and the drift, and offsets."""
    scaled = math.exp(factor) * communication
    share = scaled / (remaining + scaled)
    table = np.column_stack([np.ones(len(share)), share, doublings])
    return table, np.log(remaining + scaled) - share * factor
