"""Registry of the predicted optimizers, and the sums that memory and speed take from it."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from shardtune.tuner.prediction.candidates import Array, Candidates, Dtypes, Implementation
from shardtune.tuner.prediction.model_shape import ModelShape
from shardtune.tuner.prediction.optimizers import adamw, muon
from shardtune.tuner.prediction.optimizers.record import PredictedOptimizer
from shardtune.tuner.prediction.rates import Network, Rates

OPTIMIZERS: Mapping[str, PredictedOptimizer[Any]] = {"adamw": adamw.OPTIMIZER, "muon": muon.OPTIMIZER}

_ADAM_VALUES = 2.0
"""Number of values per parameter for which `Dtypes.moments` counts the bytes."""


def with_states(shape: ModelShape, d: Dtypes, impl: Implementation) -> Dtypes:
    """Dtypes with the bytes of optimizer state per parameter of this model or stage, on average over its parameters."""
    # Shards divide every kind of parameter evenly, so that the average holds for each rank.
    values = impl.optimizer.state_values(float(shape.parameters), float(shape.matrix_parameters))
    return replace(d, moments=d.moments / _ADAM_VALUES * values / max(float(shape.parameters), 1.0))


def step_bytes(shape: ModelShape, c: Candidates, d: Dtypes, impl: Implementation) -> Array:
    """Bytes of the temporaries that the optimizer itself needs in its step."""
    return OPTIMIZERS[impl.optimizer.kind].step_bytes(impl.optimizer, shape, c, d)


def step_seconds(shape: ModelShape, c: Candidates, impl: Implementation, rates: Rates, network: Network) -> Array:
    """Seconds of the optimizer step beyond passes over memory."""
    return OPTIMIZERS[impl.optimizer.kind].step_seconds(impl.optimizer, shape, c, rates, network)
