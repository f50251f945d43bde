"""Acquisition: the value of a candidate's trial to the search, which is its expected gain per second less the cost of a
failure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from shardtune.api_schemas.trials.failures import FailureKind
from shardtune.api_schemas.trials.measurements import Measurement
from shardtune.api_schemas.trials.trial import TrialState
from shardtune.tuner.history import Observation
from shardtune.tuner.prediction.calibration import MemoryCalibration
from shardtune.tuner.prediction.learning import peak_gib
from shardtune.tuner.search.guided_sampler.encoding import Array, Rows
from shardtune.tuner.search.guided_sampler.pool import Pool
from shardtune.tuner.search.guided_sampler.residual import Posterior, matern

# Relative to the largest gain, so that late in a search too, where gains are small, a risk competes with a gain and not
# with slow, certain candidates.
FAILURE_COST = 0.5
"""Cost of a failed trial, as a fraction of the largest gain expected of any candidate."""
_LENGTH, _LIKE = 1.5, 0.5
_MEMORY_NOISE = 0.01
"""Standard deviation of the logarithm of peak memory between runs of one configuration
(docs/measurements/predictor.md)."""
_LEAST_SIGMA = 0.03
_SIGMAS = (1.0, 0.3, 0.1)
"""Possible standard deviations of the memory predictor's error, as fractions of the calibration's sigma. The study's
own measurements weight them: most peaks are predicted much better than the worst."""
_STARTUP_S, _STEPS = 5.0, 20.0
"""Seconds before a trial's first step, and number of steps in a trial, assumed until a trial has been measured."""
_COMPILE_S = 60.0
"""Additional seconds of a trial that compiles the model's blocks, assumed until a compiled trial has been measured."""
_MOST_FINISHED = 120
_CERTAIN = 6.0
"""Distance of the predicted peak from the memory limit, in standard deviations, beyond which no measured peak changes
whether a candidate fits."""
_erf = np.vectorize(math.erf, otypes=[float])


def normal_cdf(values: Array) -> Array:
    """Cumulative distribution function of the standard normal distribution."""
    return np.asarray(0.5 * (1.0 + _erf(values / math.sqrt(2.0))))


def expected_gain(time: Posterior, best: float) -> Array:
    """Expected improvement of each candidate's log speed over a trial with the log step time `best` (Jones, Schonlau
    and Welch 1998, equation 15)."""
    z = (best - time.means) / time.deviations
    density = np.exp(-0.5 * z**2) / math.sqrt(2.0 * math.pi)
    return np.asarray(time.weights @ (time.deviations * (z * normal_cdf(z) + density)))


def faster_probability(time: Posterior, best: float, index: int) -> float:
    """Probability that the candidate at this index has a shorter step than a trial with the log step time `best`."""
    z = (best - time.means[:, index]) / time.deviations[:, index]
    return float(time.weights @ normal_cdf(z))


def utility(gain: Array, risk: Array, seconds: Array) -> Array:
    """Utility of each candidate: expected gain in log speed per second of its trial, less the cost of a failure."""
    net = gain * (1.0 - risk) - FAILURE_COST * risk * gain.max(initial=0.0)
    # A loss is not made smaller by taking longer.
    return np.asarray(np.where(net > 0.0, net / seconds, net * seconds))


@dataclass(frozen=True)
class TrialCost:
    """Estimate of a trial's duration: seconds of startup before its first step, and the number of steps it runs."""

    startup_s: float = _STARTUP_S
    steps: float = _STEPS
    compile_s: float = _COMPILE_S

    @classmethod
    def from_history(cls, history: Sequence[Observation]) -> "TrialCost":
        """Typical cost of a trial: the medians of startup seconds and step counts of this study's trials so far."""
        runs = [
            (obs.config.compile, *_startup_and_steps(obs.measurement))
            for obs in history
            if obs.measurement is not None and obs.measurement.elapsed_s > 0
        ]
        if not runs:
            return cls()
        plain, compiled = (
            [start for compiled_run, start, _ in runs if compiled_run is is_compiled] for is_compiled in (False, True)
        )
        startup = median(plain) if plain else _STARTUP_S
        compile_s = max(0.0, median(compiled) - startup) if compiled else _COMPILE_S
        return cls(startup, median(steps for _, _, steps in runs), compile_s)

    def seconds(self, log_time: Array, compiled: Array) -> Array:
        """Seconds that trials with these log step times take; `compiled` is 1 for a trial that compiles the model's
        blocks first."""
        return np.asarray(self.startup_s + self.compile_s * compiled + self.steps * np.exp(log_time))


def _startup_and_steps(run: Measurement) -> tuple[float, float]:
    """Seconds that a trial spends before its first and after its last step, and its number of steps."""
    steps = max(1.0, run.whole_steps)
    return max(0.1, run.elapsed_s - steps * run.step_time_s), steps


def infeasible_probability(
    pool: Pool, rows: Rows, history: Sequence[Observation], calibration: MemoryCalibration, limit_gib: float
) -> Array:
    """Probability for each candidate that its trial runs out of memory, or fails in the way in which similar trials
    failed."""
    ended = [obs for obs in history if not obs.state.is_open and obs.state is not TrialState.CANCELLED]
    finished = ended[-_MOST_FINISHED:]
    finished_rows = pool.rows([obs.config for obs in finished])
    too_large = _too_large_probability(pool, rows, finished, finished_rows, calibration, limit_gib)
    failed = np.array([_failed_otherwise(obs) for obs in finished], dtype=float)
    if not failed.any():
        return too_large
    similarity = matern(pool.knobs[rows], pool.knobs[finished_rows], _LIKE)
    failed_fraction = (similarity @ failed) / (similarity.sum(axis=1) + 1.0)
    return np.asarray(1.0 - (1.0 - too_large) * (1.0 - failed_fraction))


def _too_large_probability(
    pool: Pool,
    rows: Rows,
    finished: Sequence[Observation],
    finished_rows: Sequence[int],
    calibration: MemoryCalibration,
    limit: float,
) -> Array:
    """Probability for each candidate that its peak memory exceeds the limit: the prediction corrected by measured
    peaks, averaged over the predictor's possible errors."""
    sigma = max(calibration.sigma, _LEAST_SIGMA)
    over = np.log(pool.peak_gib[rows] * calibration.factor / limit)
    # The Gaussian process is solved only for candidates near the limit: for all others no measurement changes the
    # answer.
    uncertain = np.flatnonzero(np.abs(over) < _CERTAIN * sigma)
    probabilities = (over > 0.0).astype(float)
    if not len(uncertain):
        return probabilities
    measured_peaks = [
        (row, peak) for row, obs in zip(finished_rows, finished, strict=True) if (peak := _needed_gib(obs))
    ]
    measured_rows = np.array([row for row, _ in measured_peaks], dtype=np.intp)
    error = np.log([peak for _, peak in measured_peaks]) - np.log(pool.peak_gib[measured_rows] * calibration.factor)
    likeness = _memory_correlation(pool.knobs[measured_rows], pool.knobs[measured_rows])
    across = _memory_correlation(pool.knobs[rows[uncertain]], pool.knobs[measured_rows])
    chances, evidence = [], []
    for scale in (share * sigma for share in _SIGMAS):
        precision = np.linalg.inv(likeness + (_MEMORY_NOISE / scale) ** 2 * np.eye(len(measured_rows)))
        gain = across @ precision
        variance = scale**2 * (1.0 - (gain * across).sum(axis=1))
        deviation = np.sqrt(np.maximum(variance, 0.0) + _MEMORY_NOISE**2)
        chances.append(normal_cdf((over[uncertain] + gain @ error) / deviation))
        evidence.append(_log_evidence(likeness, error, scale))
    weights = np.exp(np.array(evidence) - max(evidence))
    probabilities[uncertain] = weights @ np.array(chances) / weights.sum()
    return probabilities


def _log_evidence(likeness: Array, error: Array, sigma: float) -> float:
    """Log likelihood of the memory predictor's observed errors, if they are normally distributed with this standard
    deviation."""
    factor = np.linalg.cholesky(sigma**2 * likeness + _MEMORY_NOISE**2 * np.eye(len(error)))
    return float(-0.5 * (np.linalg.solve(factor, error) ** 2).sum() - np.log(np.diag(factor)).sum())


def _memory_correlation(first: Array, second: Array) -> Array:
    return np.asarray(0.5 + 0.5 * matern(first, second, _LENGTH))


def _needed_gib(obs: Observation) -> float | None:
    """Peak memory (GiB) that a trial needed, None where it is unknown."""
    if obs.measurement is not None:
        return peak_gib(obs.measurement.memory)
    # After an out-of-memory error the allocated bytes say only that this much was not enough.
    ran = obs.failure is not None and obs.failure.kind is FailureKind.OVER_LIMIT
    return obs.failure.peak_allocated_gib if obs.failure is not None and ran else None


def _failed_otherwise(obs: Observation) -> bool:
    return obs.is_excluded and _needed_gib(obs) is None
