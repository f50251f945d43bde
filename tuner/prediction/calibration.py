"""Calibration of the predictor for one machine and its software by measured trials: a few physical factors, with an
interval.

A step's time is a sum of parts (tuner.prediction.throughput.StepTable.parts). Each part has a factor of its own on its
time, and all parts share a further factor. A prior keeps the factors near 1, so that one measurement moves the shared
factor and many separate the parts.

On GPUs the host's time for a kernel launch has a factor of its own, found first: whether a step waits for the host at all
depends on it, so no factor on a part of the step can stand for it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardtune.api_schemas.training.step_trace import StepTrace

Array = NDArray[np.float64]

PARTS = ("matmul", "vector_matmul", "attention", "elementwise", "launch", "backend", "communication", "step", "offload")


class FactorSpread(NamedTuple):
    """Prior standard deviations of the logarithms of the factors by which calibration corrects the time of a step's
    parts."""

    shared: float
    """Prior standard deviation of the log of the factor that corrects the times of all parts of a step."""
    part: float
    """Prior standard deviation of the log of a factor that corrects the time of only one part of a step, such as
    communication."""

    @property
    def deviations(self) -> Array:
        """Prior standard deviation of the log of each correction factor: first the factor on all parts of a step, then
        the factors on single parts in the order of `PARTS`."""
        return np.array([self.shared, *[self.part] * len(PARTS)])


# Trials that all wait for the host say nothing about the device's rates. A wide shared factor would carry a slow host
# over to them: 12 such trials of an H200 made runs that keep it busy look 30 % slower (docs/measurements/gpu/h200.md).
GPU_SPREAD = FactorSpread(shared=0.15, part=0.35)
CPU_SPREAD = FactorSpread(shared=0.4, part=1.0)
"""Prior standard deviations of the factors by which calibration corrects predicted times on CPU ranks. They are wide,
as rates of CPUs are known only to an order of magnitude."""
HOST_FACTORS = (1.0, 0.5, 0.7, 1.4, 2.0, 2.8, 4.0)
"""Factors on the seconds of a kernel launch among which calibration chooses on GPUs, beginning with the one assumed
without trials. Hosts differ that much (a virtual machine with an H200 took about 2.8 times the catalogue's;
docs/measurements/gpu/h200.md)."""
HOST_SIGMA = 0.7
"""Prior standard deviation of the log factor on the seconds of a kernel launch."""
NOISE_SIGMA = 0.06
"""Standard deviation of log(measured / predicted) step time that remains among the runs of one source and GPU after
calibration."""
_ITERATIONS = 12
BAND_DEVIATIONS = 1.645
"""Number of standard deviations on either side of the mean that contain 90 % of a normal distribution."""


@dataclass(frozen=True)
class SpeedCalibration:
    """Calibration of predicted speed: factors on the time of each part of a step; above 1 the machine is slower than
    the catalogue's figures."""

    factors: Mapping[str, float]
    sigma: float
    """Standard deviation of log(measured / predicted) step time that remains after calibration."""
    rows: int
    host: float = 1.0
    """Factor on the seconds of a kernel launch. It is applied when the parts of a step are predicted; `factors` then
    correct these parts."""

    def __hash__(self) -> int:
        """Return a hash of the calibration's values, so that functions that cache predictions can use it as a key."""
        return hash((self.sigma, self.rows, self.host, *self.factors.items()))

    @property
    def highest(self) -> float:
        """Ratio of the upper end of a predicted speed's 90 % interval to the expected speed."""
        return float(np.exp(BAND_DEVIATIONS * self.sigma))

    def seconds(self, parts: Mapping[str, Array]) -> Array:
        """Predicted seconds of a step after calibration."""
        total: Array = sum((self.factors[name] * parts[name] for name in PARTS), np.zeros(1))
        return total


UNCALIBRATED = SpeedCalibration(factors=dict.fromkeys(PARTS, 1.0), sigma=0.2, rows=0)
"""Calibration of predicted speed without any trials. Its sigma of 0.2 is the error for published sources that were left
out of the fit (docs/measurements/predictor.md)."""


def fit_host_and_parts(
    parts_by_host: Mapping[float, Sequence[Mapping[str, float]]],
    measured_s: Sequence[float],
    spread: FactorSpread = GPU_SPREAD,
) -> SpeedCalibration:
    """Fit the factor on a kernel launch, chosen from those given, together with the factors on the parts of a step; the
    most probable combination wins.

    `parts_by_host`: predicted seconds of the parts of each measured step, for each factor on a kernel launch.

    Raises:
        ValueError: no measurements to fit, or a time that is not positive.
    """
    if len(parts_by_host) == 1:
        ((host, parts),) = parts_by_host.items()
        return replace(fit_speed(parts, measured_s, spread), host=host)
    fits = {host: _fit(parts, measured_s, spread) for host, parts in parts_by_host.items()}

    def improbability(host: float) -> float:
        return fits[host].improbability + 0.5 * (math.log(host) / HOST_SIGMA) ** 2

    # The first of equally probable factors: the prior's, where no trial waited for the host.
    best = min(fits, key=improbability)
    return replace(fits[best].calibration, host=best)


@dataclass(frozen=True)
class _Fit:
    calibration: SpeedCalibration
    improbability: float
    """Negative logarithm of the posterior density at the fitted factors, up to a constant."""


def fit_speed(
    parts: Sequence[Mapping[str, float]], measured_s: Sequence[float], spread: FactorSpread = GPU_SPREAD
) -> SpeedCalibration:
    """Fit the most probable factors on the parts of a step to measured step times (Gauss-Newton on log time, Gaussian
    priors on log factors).

    `spread`: prior deviations of the factors; `CPU_SPREAD` for CPU ranks.

    Raises:
        ValueError: no measurements to fit, or a time that is not positive.
    """
    return _fit(parts, measured_s, spread).calibration


def _fit(parts: Sequence[Mapping[str, float]], measured_s: Sequence[float], spread: FactorSpread) -> _Fit:
    if not parts or len(parts) != len(measured_s):
        raise ValueError(
            f"measured_s ({len(measured_s)} values) must match parts ({len(parts)}); give at least one row"
        )
    if min(measured_s) <= 0:
        raise ValueError(f"measured_s ({min(measured_s)}) must be positive; drop rows without a measurement")
    table = np.array([[max(row[name], 0.0) for name in PARTS] for row in parts])
    target = np.log(np.asarray(measured_s, dtype=float))
    theta = np.zeros(1 + len(PARTS))
    precision = np.diag(spread.deviations**-2)
    weights = np.ones(len(target))
    for _ in range(_ITERATIONS):
        scaled = table * np.exp(theta[0] + theta[1:])
        total = scaled.sum(axis=1)
        residual = target - np.log(total)
        # Huber weights: one odd row (a cold node, a padded batch) must not move the factors.
        weights = np.minimum(1.0, 2 * NOISE_SIGMA / np.maximum(np.abs(residual), 1e-9))
        jacobian = np.column_stack([np.ones(len(total)), scaled / total[:, None]])
        weighted = jacobian * (weights / NOISE_SIGMA**2)[:, None]
        theta = theta + np.linalg.solve(weighted.T @ jacobian + precision, weighted.T @ residual - precision @ theta)
    factors = {name: float(np.exp(theta[0] + theta[1 + i])) for i, name in enumerate(PARTS)}
    remaining = float(np.sqrt(np.average(residual**2, weights=weights))) if len(target) > 2 else NOISE_SIGMA
    calibration = SpeedCalibration(factors=factors, sigma=max(remaining, NOISE_SIGMA / 2), rows=len(target))
    return _Fit(calibration, _huber(target - np.log(_seconds(table, theta))) + 0.5 * float(theta @ precision @ theta))


def _seconds(table: Array, theta: Array) -> Array:
    seconds: Array = (table * np.exp(theta[0] + theta[1:])).sum(axis=1)
    return seconds


def _huber(residual: Array) -> float:
    """Penalty of each residual (in standard deviations) in the fit: half its square up to two standard deviations,
    linear beyond, so that outliers count less."""
    deviations = np.abs(residual) / NOISE_SIGMA
    return float(np.where(deviations < 2, 0.5 * deviations**2, 2 * deviations - 2).sum())


@dataclass(frozen=True)
class MemoryCalibration:
    """Calibration of predicted peak memory for one fingerprint (hardware and software versions): a factor, and the
    error that remains."""

    factor: float = 1.0
    sigma: float = 0.10
    """Standard deviation of log(measured / predicted) peak memory; 0.10 over published rows
    (docs/measurements/predictor.md)."""
    rows: int = 0

    def bounds(self, predicted: float, deviations: float = 1.64) -> tuple[float, float]:
        """Interval in which the measured peak memory is expected, as wide as `deviations` standard deviations on either
        side; 1.64 of them contain 90 %."""
        low, high = np.exp(-deviations * self.sigma), np.exp(deviations * self.sigma)
        return float(predicted * self.factor * low), float(predicted * self.factor * high)


NO_TRIALS = MemoryCalibration()
"""Memory calibration without trials for models whose widths are known."""
ESTIMATED = MemoryCalibration(sigma=0.25)
"""Memory calibration without trials for models whose widths inside a block are estimated
(tuner.prediction.traced_shape)."""
TRACED = MemoryCalibration(sigma=0.15)
"""Memory calibration without trials for the user's own code: traces leave out work space of kernels
(docs/measurements/own-code.md)."""
_MAX_LOG_FACTOR = float(np.log(1.5))
"""Maximum absolute value of the logarithm of the calibration factor on memory."""


def fit_memory(
    predicted: Sequence[float], measured: Sequence[float], prior: MemoryCalibration = NO_TRIALS
) -> MemoryCalibration:
    """Fit the memory calibration: the median ratio of measured to predicted peaks, shrunk towards 1, and the robust
    spread around it."""
    if not predicted or len(predicted) != len(measured):
        raise ValueError(
            f"measured ({len(measured)} values) must match predicted ({len(predicted)}); give at least one"
        )
    ratios = np.log(np.asarray(measured, dtype=float) / np.asarray(predicted, dtype=float))
    count = len(ratios)
    # More than a half off means another model, not a correction. The excess stays in the spread and widens the gate.
    centre = float(np.clip(np.median(ratios) * count / (count + 2.0), -_MAX_LOG_FACTOR, _MAX_LOG_FACTOR))
    spread = 1.4826 * float(np.median(np.abs(ratios - centre)))
    # Two pseudo-rows of the prior's spread, so that three lucky trials do not close the gate's margin.
    sigma = np.sqrt((count * spread**2 + 2.0 * prior.sigma**2) / (count + 2.0))
    return MemoryCalibration(factor=float(np.exp(centre)), sigma=float(sigma), rows=count)


@dataclass(frozen=True)
class Calibrations:
    """Calibrations of one fingerprint (hardware and software versions); without trials, the priors."""

    speed: SpeedCalibration = UNCALIBRATED
    memory: MemoryCalibration | None = None
    own_code: Mapping[StepTrace, "OwnCalibration"] = field(default_factory=dict)
    """Calibrations for the user's own code, by the trace of its training step."""


@dataclass(frozen=True)
class OwnCalibration:
    """Calibrations for one traced training step of the user's own code. They apply to no other model."""

    speed: SpeedCalibration
    memory: MemoryCalibration


NO_CALIBRATIONS = Calibrations()
