"""Chance of each projected configuration to be the fastest, by the bands of the projections."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shardtune.tuner.projection.structural import StructuralError, learnt

_DEVIATIONS = 1.645
"""Number of standard deviations on either side of the mean that contain 90 % of a normal distribution."""
_DRAWS = 40_000
"""Number of simulated outcomes. With so many, a chance near 50 % has a sampling error (one standard deviation) of 0.25
percentage points."""
_MOST_COMPARED = 64
"""Maximum number of configurations that are simulated, the fastest by projection: their outcomes take 100 MB. Slower
configurations practically never are the fastest in a simulation."""


@dataclass(frozen=True)
class ProjectedSpeed:
    """Projected speed of one configuration on the target, with the measured trial that it was projected from."""

    trial: int
    """Number of the measured trial. Projections from one trial share the noise of its runs."""
    expected: float
    high: float
    """Upper end of the projection's 90 % band."""

    @property
    def half_width(self) -> float:
        """Half-width of the 90 % band of the logarithm of speed."""
        return math.log(self.high / self.expected)


def chances_of_best(speeds: Sequence[ProjectedSpeed], error: StructuralError | None = None) -> list[float]:
    """Chance of each configuration to be the fastest on the target, by simulation with the error model of projections.

    The error of a projection has three parts. The noise of a trial's runs is the same for all projections from this
    trial. Of the remaining variance, a fraction (`StructuralError.shared`) is drawn once for all projections: the same
    network and ranks slow down every configuration in proportion to its band, so this part cancels between
    configurations with equal bands. The rest is drawn for each configuration separately. Only the fastest
    configurations by expected speed are simulated; all others get a chance of 0.
    """
    if not speeds:
        return []
    fastest = sorted(range(len(speeds)), key=lambda place: -speeds[place].expected)[:_MOST_COMPARED]
    chances = [0.0] * len(speeds)
    for place, chance in zip(fastest, _simulated([speeds[place] for place in fastest], error or learnt()), strict=True):
        chances[place] = chance
    return chances


def _simulated(speeds: Sequence[ProjectedSpeed], error: StructuralError) -> list[float]:
    generator = np.random.default_rng(0)
    means = np.log([speed.expected for speed in speeds])
    total = np.array([speed.half_width for speed in speeds]) / _DEVIATIONS
    noise = np.minimum(error.half_width(0.0) / _DEVIATIONS, total)
    scaling = np.sqrt(total**2 - noise**2)
    trials = sorted({speed.trial for speed in speeds})
    places = np.array([trials.index(speed.trial) for speed in speeds])
    shape = (_DRAWS, len(speeds))
    common = generator.standard_normal((_DRAWS, 1))
    of_trials = generator.standard_normal((_DRAWS, len(trials)))[:, places]
    own = generator.standard_normal(shape)
    slowness = noise * of_trials + scaling * (math.sqrt(error.shared) * common + math.sqrt(1.0 - error.shared) * own)
    fastest = np.argmax(means - slowness, axis=1)
    counts = np.bincount(fastest, minlength=len(speeds))
    return [float(count) / _DRAWS for count in counts]
