"""Time that grows with each rank: broadcasts in turn, messages to one rank. No ring model has it, so it is fitted where
the measured sizes show it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shardtune.tuner.projection.sizes import MeasuredSize, PredictedSize

_FEWEST = 3
"""Minimum number of measured sizes that span several nodes; with fewer, growth with the number of ranks cannot be told
from noise."""
_LEAST_GROWTH = 0.03
"""Minimum fraction of the largest size's step time by which the step must have grown with the number of ranks."""
_NOISE_SIGMA = 0.01
"""Lower bound on the relative standard deviation that is assumed for one measured step time."""
_DEVIATIONS = 1.645
"""Number of standard deviations on either side of the mean that contain 90 % of a normal distribution."""


@dataclass(frozen=True)
class RankTerm:
    """Fitted step time: a multiple of the predicted time, plus a term that grows linearly with the number of ranks."""

    factor: float
    per_rank_s: float
    """Seconds that each rank adds to a step."""
    per_rank_sigma_s: float
    """Standard error of `per_rank_s`."""
    largest: int
    """Number of GPUs of the largest measured run to which the term was fitted."""

    def seconds(self, target: PredictedSize) -> float:
        """Seconds that a step takes on the target, by the fitted term."""
        return self.factor * target.seconds + self.per_rank_s * target.gpus

    def open_width(self, target: PredictedSize) -> float:
        """Half-width of the 90 % band of the logarithm of step time on the target, caused by the error of `per_rank_s`
        alone."""
        beyond = target.gpus - self.largest
        return _DEVIATIONS * self.per_rank_sigma_s * beyond / self.seconds(target)


def fit(same: Sequence[MeasuredSize]) -> RankTerm | None:
    """Fit a step-time term that grows with the number of ranks to measured sizes of one layout; None where there are
    too few sizes, or no such growth."""
    # The first size over nodes adds what the network costs, so sizes within a node cannot be joined with larger ones.
    spanning = [size for size in same if size.predicted.spans_nodes]
    if len({size.predicted.gpus for size in spanning}) < _FEWEST:
        return None
    seconds = np.array([size.seconds for size in spanning])
    table = np.array([[size.predicted.seconds, float(size.predicted.gpus)] for size in spanning])
    # Relative errors count: sizes with other accumulation take other times.
    relative = table / seconds[:, None]
    factor, per_rank = np.linalg.lstsq(relative, np.ones(len(seconds)), rcond=None)[0]
    residual = relative @ np.array([factor, per_rank]) - 1.0
    noise = max(_NOISE_SIGMA, float(np.sqrt(residual @ residual / max(len(seconds) - 2, 1))))
    sigma = noise * float(np.sqrt(np.linalg.inv(relative.T @ relative)[1, 1]))
    largest = spanning[-1]
    grown = per_rank * (largest.predicted.gpus - spanning[0].predicted.gpus) / largest.seconds
    if factor <= 0 or grown < _LEAST_GROWTH:
        return None
    return RankTerm(float(factor), float(per_rank), sigma, largest.predicted.gpus)
