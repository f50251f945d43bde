"""A Gaussian process on what was measured minus what was predicted, learnt in one study.

log(measured) = b + a · log(predicted) + f(parts of the step) + g(knobs) + noise. How much to believe the prediction (a), how
large and how smooth g is, and the noise between runs are weighed by marginal likelihood over a small fixed grid
(Rasmussen and Williams 2006, chapters 2 and 5), so that trials that contradict the prediction take its weight.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from shardtune.tuner.search.guided_sampler.encoding import Array, Rows

_TRUST = ((1.0, 0.0), (0.5, -1.5), (0.0, -3.0))
"""Scale of the prediction, and the logarithm of how likely it is before anything was measured."""
_AMPLITUDE = ((0.03, 0.0), (0.08, -0.5), (0.2, -1.5), (0.8, -3.0))
"""Of g: standard deviation of log time that knobs make and the prediction does not see. Among the fast third of a table it is below
0.1 (docs/measurements/search.md); where larger ones are likely from the start, a search looks everywhere before it looks twice."""
_LENGTH = ((0.7, 0.0), (1.5, 0.0), (3.0, 0.0))
"""Of g, where 1 is from a knob's smallest value to its largest."""
NOISE = ((0.01, 0.0), (0.03, 0.0), (0.08, -0.5), (0.18, -1.0))
"""Between runs of one configuration: 0.12 to 0.22 on shared cores (docs/measurements/search.md)."""
_LEVEL, _KIND, _PARTS = 0.5, 0.08, 0.08
"""Standard deviations of b, of what is peculiar to a backend and its placement of states, and of a part's rate."""
_ACROSS = 0.8
"""Correlation of what the prediction misses in two studies on one machine."""
_MOST_FITTED = 60
_MOST_LEVERAGE = 0.9
_MODELS = 3
"""Of the grid, that are averaged."""


@dataclass(frozen=True)
class Inputs:
    """Rows: knobs of every backend, all knobs, each part's share of the predicted time, its logarithm."""

    common: Array
    knobs: Array
    kinds: Rows
    """Equal for rows of one backend and placement of states."""
    studies: Rows
    """0 for this study, another number for each of the others."""
    shares: Array
    predicted: Array

    def newest(self, count: int) -> "Inputs":
        """The last so many."""
        index = slice(len(self.predicted) - count, None)
        return Inputs(**{name: values[index] for name, values in vars(self).items()})


@dataclass(frozen=True)
class _Model:
    """One point of the grid."""

    trust: float
    amplitude: float
    length: float
    noise: float


@dataclass(frozen=True)
class Posterior:
    """A mixture of normal distributions for each row: `weights` (models), `means` and `deviations` (models x rows).

    What is to be expected of a row's tail is to be asked of each model by itself: where they disagree on a row that all of them hold
    to be slow, one normal distribution over their means would have it fast now and then.
    """

    weights: Array
    means: Array
    deviations: Array

    @cached_property
    def mean(self) -> Array:
        return np.asarray(self.weights @ self.means)

    @cached_property
    def deviation(self) -> Array:
        return np.sqrt(self.weights @ (self.deviations**2 + (self.means - self.mean) ** 2))


class Residual:
    """The process, given measured rows."""

    def __init__(self, rows: Inputs, measured: Array, extra_noise: Array, unseen: Array | None = None) -> None:
        """`measured`: logarithms; `extra_noise`: standard deviations on top; `unseen`: what would have been predicted
        for each row had it not been there to calibrate on, by which the prediction is judged."""
        self._rows, self._extra = rows, extra_noise**2
        self._measured = _centred(measured, rows.studies)
        self._predicted = _centred(rows.predicted, rows.studies)
        self._unseen = self._predicted if unseen is None else _centred(unseen, rows.studies)
        own = rows.studies == 0
        # Before a trial of its own a study is at the level that the others have: above or below what was predicted.
        self._centre = (
            (float(measured[own].mean()), float(rows.predicted[own].mean()))
            if own.any()
            else (float((measured - rows.predicted).mean()), 0.0)
        )
        self._models = self._weigh()

    @property
    def trust(self) -> float:
        """What is left of the prediction: 1 all of it, 0 nothing."""
        return sum(weight * model.trust for weight, model in self._models)

    def mean(self, rows: Inputs) -> Array:
        """Expected log time."""
        across = self._across(rows)
        return np.asarray(sum(weight * self._mean(model, rows, across[model]) for weight, model in self._models))

    def at(self, rows: Inputs, pending: Inputs) -> Posterior:
        """Distributions of log time; what runs now counts as measured at its mean, so it narrows them and moves nothing."""
        means, variances = [], []
        for model, across in self._across(rows).items():
            means.append(self._mean(model, rows, across))
            variances.append(self._variance(model, rows, pending, across))
        weights = np.array([weight for weight, _ in self._models])
        return Posterior(weights, np.array(means), np.sqrt(variances))

    def _across(self, rows: Inputs) -> dict[_Model, Array]:
        """Covariances of the measured with these rows; models of one length share the largest part of the work."""
        like = {length: _likeness(self._rows, rows, length) for length in {model.length for _, model in self._models}}
        return {model: _joint(self._rows, rows, model.amplitude**2 * like[model.length]) for _, model in self._models}

    def _mean(self, model: _Model, rows: Inputs, across: Array) -> Array:
        centre = self._centre[0] + model.trust * (rows.predicted - self._centre[1])
        return np.asarray(centre + self._weights[model] @ across)

    @cached_property
    def _weights(self) -> dict[_Model, Array]:
        made: dict[_Model, Array] = {}
        for _, model in self._models:
            known = _covariance(self._rows, self._rows, model) + np.diag(model.noise**2 + self._extra)
            made[model] = np.asarray(np.linalg.solve(known, self._target(model.trust)), dtype=float)
        return made

    def _target(self, trust: float) -> Array:
        return np.asarray(self._measured - trust * self._predicted)

    def _variance(self, model: _Model, rows: Inputs, pending: Inputs, across: Array) -> Array:
        seen = joined(self._rows, pending) if len(pending.predicted) else self._rows
        if len(pending.predicted):
            across = np.vstack([across, _covariance(pending, rows, model)])
        extra = np.append(self._extra, np.zeros(len(pending.predicted)))
        known = _covariance(seen, seen, model) + np.diag(model.noise**2 + extra)
        explained = across * (np.linalg.inv(known) @ across)
        own = model.amplitude**2 + _LEVEL**2 + _KIND**2 + _PARTS**2 * (rows.shares**2).sum(axis=1)
        return np.asarray(np.maximum(own - explained.sum(axis=0), 1e-8))

    def _weigh(self) -> list[tuple[float, _Model]]:
        count = min(len(self._measured), _MOST_FITTED)
        rows = self._rows.newest(count)
        found: list[tuple[float, _Model]] = []
        for length, length_prior in _LENGTH:
            likeness = _likeness(rows, rows, length)
            for amplitude, amplitude_prior in _AMPLITUDE:
                for spread, noise_prior in NOISE:
                    prior = length_prior + amplitude_prior + noise_prior
                    covariance = _joint(rows, rows, amplitude**2 * likeness)
                    covariance += np.diag(spread**2 + self._extra[-count:])
                    for trust, evidence in self._evidence(covariance, count):
                        found.append((prior + evidence, _Model(trust, amplitude, length, spread)))
        found.sort(key=lambda one: -one[0])
        best = found[:_MODELS]
        weights = np.exp(np.array([one[0] - best[0][0] for one in best]))
        return [(float(weight / weights.sum()), model) for weight, (_, model) in zip(weights, best, strict=True)]

    def _evidence(self, covariance: Array, count: int) -> list[tuple[float, float]]:
        factor = np.linalg.cholesky(covariance)
        measured, unseen = self._measured[-count:], self._unseen[-count:]
        targets = np.column_stack([measured - trust * unseen for trust, _ in _TRUST])
        whitened = np.linalg.solve(factor, targets)
        size = -0.5 * (whitened**2).sum(axis=0) - np.log(np.diag(factor)).sum()
        return [(trust, float(value) + prior) for (trust, prior), value in zip(_TRUST, size, strict=True)]


def joined(first: Inputs, second: Inputs) -> Inputs:
    """The rows of both, one after the other."""
    return Inputs(**{name: np.concatenate([values, vars(second)[name]]) for name, values in vars(first).items()})


def _centred(values: Array, studies: Rows) -> Array:
    """Less the mean of each study: only orders are compared across them."""
    means = np.array([values[studies == study].mean() for study in studies], dtype=float)
    return np.asarray(values - means)


def _covariance(left: Inputs, right: Inputs, model: _Model) -> Array:
    return _joint(left, right, model.amplitude**2 * _likeness(left, right, model.length))


def _joint(left: Inputs, right: Inputs, knobs: Array) -> Array:
    """With what is told by the knobs, all that two rows share; less of it where they are of two studies."""
    kinds, studies = left.kinds[:, None] == right.kinds, left.studies[:, None] == right.studies
    common = knobs + _KIND**2 * kinds + _PARTS**2 * left.shares @ right.shares.T
    return np.asarray(_LEVEL**2 * studies + np.where(studies, 1.0, _ACROSS) * common)


def _likeness(left: Inputs, right: Inputs, length: float) -> Array:
    """Half by the knobs that all backends have, half by all: what a micro batch does is much the same for each of them."""
    return 0.5 * matern(left.common, right.common, length) + 0.5 * matern(left.knobs, right.knobs, length)


def matern(left: Array, right: Array, length: float) -> Array:
    """Matern 5/2 correlation."""
    squared = (left**2).sum(axis=1)[:, None] + (right**2).sum(axis=1) - 2.0 * left @ right.T
    # In place: these are the largest arrays of an ask.
    np.maximum(squared, 0.0, out=squared)
    squared *= 5.0 / length**2
    scaled = np.sqrt(squared)
    squared /= 3.0
    squared += scaled
    squared += 1.0
    np.negative(scaled, out=scaled)
    np.exp(scaled, out=scaled)
    squared *= scaled
    return np.asarray(squared)


def unseen(rows: Inputs, measured: Array, prior: Array, noise: float, weight: float = 1.0) -> Array:
    """What a calibration fitted to these rows would have predicted for each without it (leverage of a linear fit).

    `prior`: standard deviations of the logarithms of the factors that all parts share, and of each part's own. With as
    many factors as rows a fit reproduces whatever was measured, which is no merit of the prediction. `weight`: rows it
    rests on for each of these; those of other studies hold it in place.
    """
    jacobian = np.column_stack([np.ones(len(measured)), rows.shares])
    inverse = np.linalg.inv(weight * jacobian.T @ jacobian / noise**2 + np.diag(prior**-2.0))
    leverage = np.einsum("ij,jk,ik->i", jacobian, inverse, jacobian) / noise**2
    return np.asarray(measured - (measured - rows.predicted) / (1.0 - np.minimum(leverage, _MOST_LEVERAGE)))
