"""Time that grows with each rank: broadcasts in turn, messages to one rank. No ring model has it, so it is fitted where
the measured sizes show it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shardtune.tuner.projection.sizes import MeasuredSize, PredictedSize

_FEWEST = 3
"""Fewest sizes over nodes between which growth is told from noise."""
_LEAST_GROWTH = 0.03
"""Least fraction of the largest size's step that must have grown with the ranks."""
_NOISE_SIGMA = 0.01
"""Least relative standard deviation of one measured step time."""
_DEVIATIONS = 1.645
"""Number of standard deviations on either side of the mean that contain 90 % of a normal distribution."""


@dataclass(frozen=True)
class RankTerm:
    """Step time as a multiple of the predicted time and a term linear in ranks."""

    factor: float
    per_rank_s: float
    """Seconds that each rank adds to a step."""
    per_rank_sigma_s: float
    """Standard error of `per_rank_s`."""
    largest: int
    """Number of GPUs of the largest measured run to which the term was fitted."""

    def seconds(self, target: PredictedSize) -> float:
        """Seconds of a step at the target."""
        return self.factor * target.seconds + self.per_rank_s * target.gpus

    def open_width(self, target: PredictedSize) -> float:
        """Half-width of the 90 % band in logarithm of time that the error of `per_rank_s` causes at the target."""
        beyond = target.gpus - self.largest
        return _DEVIATIONS * self.per_rank_sigma_s * beyond / self.seconds(target)


def fit(same: Sequence[MeasuredSize]) -> RankTerm | None:
    """Fit the term to measured sizes of one layout; None where they are too few, or do not show it."""
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
