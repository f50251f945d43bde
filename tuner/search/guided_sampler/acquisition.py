"""What a trial is worth: the gain to expect of it for each second it takes, less what a failure would cost."""

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

FAILURE_COST = 0.5
"""What a failure costs, as a share of the most that any candidate is expected to gain: late in a search, too, where gains are
small, a risk stands against a gain, and not against whatever is slow and certain."""
_LENGTH, _LIKE = 1.5, 0.5
_MEMORY_NOISE = 0.01
"""Between runs of one configuration (docs/measurements/predictor.md)."""
_LEAST_SIGMA = 0.03
_SIGMAS = (1.0, 0.3, 0.1)
"""Of the calibration's, weighed by what the study has measured: most peaks are known much better than the worst."""
_STARTUP_S, _STEPS = 5.0, 20.0
"""Of a trial, before one has been measured."""
_COMPILE_S = 60.0
"""What compiling the blocks takes on top, until it has been seen."""
_MOST_FINISHED = 120
_CERTAIN = 6.0
"""Deviations from the limit beyond which no peak that was measured changes whether a candidate fits."""
_erf = np.vectorize(math.erf, otypes=[float])


def normal_cdf(values: Array) -> Array:
    """Of the standard normal distribution."""
    return np.asarray(0.5 * (1.0 + _erf(values / math.sqrt(2.0))))


def expected_gain(time: Posterior, best: float) -> Array:
    """Expected improvement of log speed over a log time of `best` (Jones, Schonlau and Welch 1998, equation 15)."""
    z = (best - time.means) / time.deviations
    density = np.exp(-0.5 * z**2) / math.sqrt(2.0 * math.pi)
    return np.asarray(time.weights @ (time.deviations * (z * normal_cdf(z) + density)))


def faster_probability(time: Posterior, best: float, place: int) -> float:
    """That the row at this place takes less than a log time of `best`."""
    z = (best - time.means[:, place]) / time.deviations[:, place]
    return float(time.weights @ normal_cdf(z))


def worth(gain: Array, risk: Array, seconds: Array) -> Array:
    """Of each candidate: expected gain for each second of its trial, less what a failure would cost."""
    net = gain * (1.0 - risk) - FAILURE_COST * risk * gain.max(initial=0.0)
    # A loss is not made smaller by taking longer.
    return np.asarray(np.where(net > 0.0, net / seconds, net * seconds))


@dataclass(frozen=True)
class TrialCost:
    """Seconds of a trial: what it costs before its first step, and the steps it takes."""

    startup_s: float = _STARTUP_S
    steps: float = _STEPS
    compile_s: float = _COMPILE_S

    @classmethod
    def of(cls, history: Sequence[Observation]) -> "TrialCost":
        """As this study's trials have been."""
        runs = [
            (obs.config.compile, *_startup(obs.measurement))
            for obs in history
            if obs.measurement is not None and obs.measurement.elapsed_s > 0
        ]
        if not runs:
            return cls()
        plain, compiled = ([start for was, start, _ in runs if was is wanted] for wanted in (False, True))
        usual = median(plain) if plain else _STARTUP_S
        longer = max(0.0, median(compiled) - usual) if compiled else _COMPILE_S
        return cls(usual, median(steps for _, _, steps in runs), longer)

    def seconds(self, log_time: Array, compiled: Array) -> Array:
        """Of trials whose steps take so long; `compiled` is 1 where blocks are compiled first."""
        return np.asarray(self.startup_s + self.compile_s * compiled + self.steps * np.exp(log_time))


def _startup(run: Measurement) -> tuple[float, float]:
    """Seconds before the first step and after the last, and the steps between."""
    steps = float(max(1, run.measured_steps + run.warmup_steps + len(run.trajectory)))
    return max(0.1, run.elapsed_s - steps * run.step_time_s), steps


def infeasible_probability(
    pool: Pool, rows: Rows, history: Sequence[Observation], known: MemoryCalibration, limit_gib: float
) -> Array:
    """That a candidate needs too much memory, or fails as measured ones that are like it."""
    ended = [obs for obs in history if not obs.state.is_open and obs.state is not TrialState.CANCELLED]
    finished = ended[-_MOST_FINISHED:]
    at = pool.rows([obs.config for obs in finished])
    too_large = _too_large(pool, rows, finished, at, known, limit_gib)
    failed = np.array([_failed(obs) for obs in finished], dtype=float)
    if not failed.any():
        return too_large
    like = matern(pool.knobs[rows], pool.knobs[at], _LIKE)
    share = (like @ failed) / (like.sum(axis=1) + 1.0)
    return np.asarray(1.0 - (1.0 - too_large) * (1.0 - share))


def _too_large(
    pool: Pool, rows: Rows, finished: Sequence[Observation], at: Sequence[int], known: MemoryCalibration, limit: float
) -> Array:
    """By the predicted peak, corrected by the peaks of what ran, on average over how exact the predictor may be."""
    sigma = max(known.sigma, _LEAST_SIGMA)
    over = np.log(pool.peak_gib[rows] * known.factor / limit)
    close = np.flatnonzero(np.abs(over) < _CERTAIN * sigma)
    found = (over > 0.0).astype(float)
    if not len(close):
        return found
    seen = [(row, peak) for row, obs in zip(at, finished, strict=True) if (peak := _peak(obs))]
    where = np.array([row for row, _ in seen], dtype=np.intp)
    error = np.log([peak for _, peak in seen]) - np.log(pool.peak_gib[where] * known.factor)
    likeness = _memory_likeness(pool.knobs[where], pool.knobs[where])
    across = _memory_likeness(pool.knobs[rows[close]], pool.knobs[where])
    chances, evidence = [], []
    for scale in (share * sigma for share in _SIGMAS):
        known_by = np.linalg.inv(likeness + (_MEMORY_NOISE / scale) ** 2 * np.eye(len(where)))
        gain = across @ known_by
        variance = scale**2 * (1.0 - (gain * across).sum(axis=1))
        deviation = np.sqrt(np.maximum(variance, 0.0) + _MEMORY_NOISE**2)
        chances.append(normal_cdf((over[close] + gain @ error) / deviation))
        evidence.append(_evidence(likeness, error, scale))
    weights = np.exp(np.array(evidence) - max(evidence))
    found[close] = weights @ np.array(chances) / weights.sum()
    return found


def _evidence(likeness: Array, error: Array, sigma: float) -> float:
    """Logarithm of how likely the errors are where they spread so."""
    factor = np.linalg.cholesky(sigma**2 * likeness + _MEMORY_NOISE**2 * np.eye(len(error)))
    return float(-0.5 * (np.linalg.solve(factor, error) ** 2).sum() - np.log(np.diag(factor)).sum())


def _memory_likeness(left: Array, right: Array) -> Array:
    return np.asarray(0.5 + 0.5 * matern(left, right, _LENGTH))


def _peak(obs: Observation) -> float | None:
    """What it needed. Where it ran out of memory, what it held by then says only that this was not enough."""
    if obs.measurement is not None:
        return peak_gib(obs.measurement.memory)
    ran = obs.failure is not None and obs.failure.kind is FailureKind.OVER_LIMIT
    return obs.failure.peak_allocated_gib if obs.failure is not None and ran else None


def _failed(obs: Observation) -> bool:
    return obs.is_no_choice and _peak(obs) is None
