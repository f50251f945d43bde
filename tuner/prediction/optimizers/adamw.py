"""Prediction for AdamW: a fused kernel has no temporaries, and its passes over memory are all of its work."""

from shardtune.api_schemas.training.optimizers import AdamW
from shardtune.tuner.prediction.candidates import Array, Candidates, Dtypes
from shardtune.tuner.prediction.model_shape import ModelShape
from shardtune.tuner.prediction.optimizers.record import PredictedOptimizer
from shardtune.tuner.prediction.rates import Network, Rates


def _step_bytes(_settings: AdamW, _shape: ModelShape, c: Candidates, _d: Dtypes, _on_cpu: bool) -> Array:
    # The backends know the temporaries of an AdamW that is not fused, which are those of their shards.
    return c.tokens * 0.0


def _step_seconds(_settings: AdamW, _shape: ModelShape, c: Candidates, _rates: Rates, _network: Network) -> Array:
    return c.tokens * 0.0


OPTIMIZER = PredictedOptimizer[AdamW](_step_bytes, _step_seconds)
