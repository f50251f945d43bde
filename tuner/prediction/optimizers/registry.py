"""Registry of the predicted optimizers, and the sums that memory and speed take from it."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from shardtune.tuner.prediction.candidates import Array, Candidates, Dtypes, Implementation
from shardtune.tuner.prediction.model_shape import ModelShape
from shardtune.tuner.prediction.optimizers import adamw, adamw_8bit, adamw_bf16, muon
from shardtune.tuner.prediction.optimizers.record import PredictedOptimizer
from shardtune.tuner.prediction.rates import Network, Rates

OPTIMIZERS: Mapping[str, PredictedOptimizer[Any]] = {
    "adamw": adamw.OPTIMIZER,
    "adamw-8bit": adamw_8bit.OPTIMIZER,
    "adamw-bf16": adamw_bf16.OPTIMIZER,
    "muon": muon.OPTIMIZER,
}

_ADAM_VALUES = 2.0
"""Number of optimizer values per parameter (Adam's two moments) whose bytes `Dtypes.moments` adds up."""


def with_states(shape: ModelShape, d: Dtypes, impl: Implementation) -> Dtypes:
    """Dtypes with the bytes of optimizer state per parameter, averaged over the parameters of this model or pipeline
    stage."""
    # Shards divide every kind of parameter evenly, so that the average holds for each rank.
    count = float(shape.parameters)
    kept = impl.optimizer.state_bytes(count, float(shape.matrix_parameters), d.moments / _ADAM_VALUES)
    return replace(d, moments=kept / max(count, 1.0))


def step_bytes(shape: ModelShape, c: Candidates, d: Dtypes, impl: Implementation, on_cpu: bool) -> Array:
    """Bytes of temporaries that the optimizer needs in its step, besides its states."""
    return OPTIMIZERS[impl.optimizer.kind].step_bytes(impl.optimizer, shape, c, d, on_cpu)


def step_seconds(shape: ModelShape, c: Candidates, impl: Implementation, rates: Rates, network: Network) -> Array:
    """Seconds of the optimizer step in addition to its passes over memory."""
    return OPTIMIZERS[impl.optimizer.kind].step_seconds(impl.optimizer, shape, c, rates, network)
