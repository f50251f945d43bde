"""Residual: a Gaussian process on measured minus predicted log times, learnt in one study.

log(measured) = b + a · log(predicted) + f(parts of the step) + g(knobs) + noise. The trust in the prediction (a), the
size and smoothness of g, and the noise between runs are weighted by marginal likelihood over a small fixed grid
(Rasmussen and Williams 2006, chapters 2 and 5). So trials that contradict the prediction reduce its weight.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from shardtune.tuner.search.guided_sampler.encoding import Array, Rows

_TRUST = ((1.0, 0.0), (0.5, -1.5), (0.0, -3.0))
"""Grid of weights that the sampler may give to the prediction, as pairs (factor on the prediction, log prior of this
factor)."""
# Among the fast third of a table the deviation is below 0.1 (docs/measurements/search.md). Where larger ones are likely
# from the start, a search looks everywhere before it looks anywhere twice.
_AMPLITUDE = ((0.03, 0.0), (0.08, -0.5), (0.2, -1.5), (0.8, -3.0))
"""Grid of amplitudes of g, the effect of knobs on log step time that the prediction misses, as pairs (standard
deviation of g, log prior)."""
_LENGTH = ((0.7, 0.0), (1.5, 0.0), (3.0, 0.0))
"""Grid of length scales of g (the effect of knobs that the prediction misses), as pairs (length scale, log prior),
where 1 is the distance between a knob's smallest and largest value."""
# Measured: 0.12 to 0.22 on shared cores (docs/measurements/search.md).
NOISE = ((0.01, 0.0), (0.03, 0.0), (0.08, -0.5), (0.18, -1.0))
"""Grid of measurement noise, as pairs (standard deviation of log time between runs of one configuration, log prior)."""
_LEVEL, _KIND, _PARTS = 0.5, 0.08, 0.08
"""Prior standard deviations of three errors of the prediction, in log time: a common offset, an offset of each backend
with its placement of states, and an offset of the rate of each part of the step."""
_ACROSS = 0.8
"""Correlation between the prediction's errors in two different studies on one machine."""
_MOST_FITTED = 60
_MOST_LEVERAGE = 0.9
_MODELS = 3
"""Number of Gaussian processes that are averaged: those with the best hyperparameters of the grid."""


@dataclass(frozen=True)
class Inputs:
    """Input rows of the Gaussian process: the knobs of every backend, all knobs, each part's fraction of the predicted
    time, and the log predicted time."""

    common: Array
    knobs: Array
    kinds: Rows
    """Kind code of each row: rows with equal codes have the same backend and placement of model states."""
    studies: Rows
    """Number of the study of each row: 0 for this study, another number for each of the other studies."""
    fractions: Array
    predicted: Array

    def last(self, count: int) -> "Inputs":
        """Last `count` input rows of the Gaussian process."""
        index = slice(len(self.predicted) - count, None)
        return Inputs(**{name: values[index] for name, values in vars(self).items()})


@dataclass(frozen=True)
class _Model:
    """Hyperparameters of one Gaussian process: a point of the grid."""

    trust: float
    amplitude: float
    length: float
    noise: float


@dataclass(frozen=True)
class Posterior:
    """Mixture of normal distributions of log time for each row: `weights` (models), `means` and `deviations` (models x
    rows)."""

    # Tails are computed per model: where models disagree about a row that all consider slow, one normal distribution
    # over their means would call it fast now and then.
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
    """Gaussian process on measured minus predicted log step times, fitted to measured rows."""

    def __init__(self, rows: Inputs, measured: Array, extra_noise: Array, held_out: Array | None = None) -> None:
        """Fit the Gaussian process to measured rows.

        `measured`: logarithms of measured step times. `extra_noise`: additional standard deviations. `unseen`:
        predictions for each row by a calibration fitted without that row, which show how good the prediction is.
        """
        self._rows, self._extra = rows, extra_noise**2
        self._measured = _centred(measured, rows.studies)
        self._predicted = _centred(rows.predicted, rows.studies)
        self._unseen = self._predicted if held_out is None else _centred(held_out, rows.studies)
        own_rows = rows.studies == 0
        # Before its first own trial a study starts at the other studies' level above or below the prediction.
        self._centre = (
            (float(measured[own_rows].mean()), float(rows.predicted[own_rows].mean()))
            if own_rows.any()
            else (float((measured - rows.predicted).mean()), 0.0)
        )
        self._models = self._weigh()

    @property
    def trust(self) -> float:
        """Weight that the fitted process gives to the prediction: 1 means full weight, 0 means that measurements alone
        decide."""
        return sum(weight * model.trust for weight, model in self._models)

    def mean(self, rows: Inputs) -> Array:
        """Expected log step time of each input row."""
        across = self._across(rows)
        return np.asarray(sum(weight * self._mean(model, rows, across[model]) for weight, model in self._models))

    def posterior(self, rows: Inputs, pending: Inputs) -> Posterior:
        """Posterior distribution of log time for each row.

        Running trials (`pending`) count as measured at their mean: they narrow the distributions without moving them.
        """
        means, variances = [], []
        for model, across in self._across(rows).items():
            means.append(self._mean(model, rows, across))
            variances.append(self._variance(model, rows, pending, across))
        weights = np.array([weight for weight, _ in self._models])
        return Posterior(weights, np.array(means), np.sqrt(variances))

    def _across(self, rows: Inputs) -> dict[_Model, Array]:
        """Covariances between the measured rows and the rows given, for each Gaussian process (model); models with the
        same length scale share most of the computation."""
        like = {
            length: _correlation(self._rows, rows, length) for length in {model.length for _, model in self._models}
        }
        return {
            model: _joint_covariance(self._rows, rows, model.amplitude**2 * like[model.length])
            for _, model in self._models
        }

    def _mean(self, model: _Model, rows: Inputs, across: Array) -> Array:
        centre = self._centre[0] + model.trust * (rows.predicted - self._centre[1])
        return np.asarray(centre + self._weights[model] @ across)

    @cached_property
    def _weights(self) -> dict[_Model, Array]:
        solutions: dict[_Model, Array] = {}
        for _, model in self._models:
            covariance = _covariance(self._rows, self._rows, model) + np.diag(model.noise**2 + self._extra)
            solutions[model] = np.asarray(np.linalg.solve(covariance, self._target(model.trust)), dtype=float)
        return solutions

    def _target(self, trust: float) -> Array:
        return np.asarray(self._measured - trust * self._predicted)

    def _variance(self, model: _Model, rows: Inputs, pending: Inputs, across: Array) -> Array:
        observed = concatenate(self._rows, pending) if len(pending.predicted) else self._rows
        if len(pending.predicted):
            across = np.vstack([across, _covariance(pending, rows, model)])
        extra = np.append(self._extra, np.zeros(len(pending.predicted)))
        covariance = _covariance(observed, observed, model) + np.diag(model.noise**2 + extra)
        explained = across * (np.linalg.inv(covariance) @ across)
        prior_variance = model.amplitude**2 + _LEVEL**2 + _KIND**2 + _PARTS**2 * (rows.fractions**2).sum(axis=1)
        return np.asarray(np.maximum(prior_variance - explained.sum(axis=0), 1e-8))

    def _weigh(self) -> list[tuple[float, _Model]]:
        count = min(len(self._measured), _MOST_FITTED)
        rows = self._rows.last(count)
        scored: list[tuple[float, _Model]] = []
        for length, length_prior in _LENGTH:
            likeness = _correlation(rows, rows, length)
            for amplitude, amplitude_prior in _AMPLITUDE:
                for spread, noise_prior in NOISE:
                    prior = length_prior + amplitude_prior + noise_prior
                    covariance = _joint_covariance(rows, rows, amplitude**2 * likeness)
                    covariance += np.diag(spread**2 + self._extra[-count:])
                    for trust, evidence in self._evidence(covariance, count):
                        scored.append((prior + evidence, _Model(trust, amplitude, length, spread)))
        scored.sort(key=lambda pair: -pair[0])
        best = scored[:_MODELS]
        weights = np.exp(np.array([score - best[0][0] for score, _ in best]))
        return [(float(weight / weights.sum()), model) for weight, (_, model) in zip(weights, best, strict=True)]

    def _evidence(self, covariance: Array, count: int) -> list[tuple[float, float]]:
        factor = np.linalg.cholesky(covariance)
        measured, unseen = self._measured[-count:], self._unseen[-count:]
        targets = np.column_stack([measured - trust * unseen for trust, _ in _TRUST])
        whitened = np.linalg.solve(factor, targets)
        size = -0.5 * (whitened**2).sum(axis=0) - np.log(np.diag(factor)).sum()
        return [(trust, float(value) + prior) for (trust, prior), value in zip(_TRUST, size, strict=True)]


def concatenate(first: Inputs, second: Inputs) -> Inputs:
    """Concatenate two sets of the Gaussian process's input rows."""
    return Inputs(**{name: np.concatenate([values, vars(second)[name]]) for name, values in vars(first).items()})


def _centred(values: Array, studies: Rows) -> Array:
    """Subtract each study's mean from its values, because only the order of trials is comparable across studies."""
    means = np.array([values[studies == study].mean() for study in studies], dtype=float)
    return np.asarray(values - means)


def _covariance(rows: Inputs, columns: Inputs, model: _Model) -> Array:
    return _joint_covariance(rows, columns, model.amplitude**2 * _correlation(rows, columns, model.length))


def _joint_covariance(rows: Inputs, columns: Inputs, knobs: Array) -> Array:
    """Covariance of each pair of rows: from the similarity of their knobs, a shared backend and placement of states,
    and shared parts of the step; smaller where the rows are from two studies."""
    kinds, studies = rows.kinds[:, None] == columns.kinds, rows.studies[:, None] == columns.studies
    common = knobs + _KIND**2 * kinds + _PARTS**2 * rows.fractions @ columns.fractions.T
    return np.asarray(_LEVEL**2 * studies + np.where(studies, 1.0, _ACROSS) * common)


def _correlation(rows: Inputs, columns: Inputs, length: float) -> Array:
    """Correlation of each pair of rows: half from the knobs that all backends have, half from all knobs."""
    # A micro batch, for example, has much the same effect with every backend.
    return 0.5 * matern(rows.common, columns.common, length) + 0.5 * matern(rows.knobs, columns.knobs, length)


def matern(first: Array, second: Array, length: float) -> Array:
    """Matern 5/2 correlation between each row of `first` and each row of `second`, with this length scale."""
    squared = (first**2).sum(axis=1)[:, None] + (second**2).sum(axis=1) - 2.0 * first @ second.T
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


def leave_one_out(rows: Inputs, measured: Array, prior: Array, noise: float, weight: float = 1.0) -> Array:
    """Predict each row by a calibration fitted without that row (leverage of a linear fit).

    `prior`: standard deviations of the logarithms of the calibration factors: the factor shared by all parts of a step,
    then each part's own. `weight`: number of rows that the calibration was fitted to, divided by the number of rows
    given here; it is larger than 1 where rows of other studies also determine the calibration.
    """
    # With as many factors as rows a fit reproduces any measurement, which is no merit of the prediction.
    jacobian = np.column_stack([np.ones(len(measured)), rows.fractions])
    inverse = np.linalg.inv(weight * jacobian.T @ jacobian / noise**2 + np.diag(prior**-2.0))
    leverage = np.einsum("ij,jk,ik->i", jacobian, inverse, jacobian) / noise**2
    return np.asarray(measured - (measured - rows.predicted) / (1.0 - np.minimum(leverage, _MOST_LEVERAGE)))
