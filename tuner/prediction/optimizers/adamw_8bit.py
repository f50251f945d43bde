"""Prediction for bitsandbytes' 8-bit AdamW: a fused kernel on GPUs; on the CPU a row of operators over float32 copies of one
tensor's moments (`_optimizer_update_8bit_blockwise_cpu`, 0.50), a whole flat partition under ZeRO."""

import numpy as np

from shardtune.api_schemas.training.optimizers import AdamW8bit
from shardtune.tuner.prediction.candidates import ZERO, Array, Candidates, Dtypes
from shardtune.tuner.prediction.model_shape import ModelShape
from shardtune.tuner.prediction.optimizers.record import PredictedOptimizer
from shardtune.tuner.prediction.rates import Network, Rates

_FLOAT32 = 4.0
_COPIES = 5.0
"""Number of float32 copies of a tensor that exist at once in a step of 8-bit AdamW on the CPU: both moments, the
gradient, a square root and the denominator."""
_PASSED_BYTES = 128.0
"""Bytes of memory traffic per element that a step of 8-bit AdamW on the CPU has beyond one fused pass."""


def _step_bytes(_settings: AdamW8bit, shape: ModelShape, c: Candidates, d: Dtypes, on_cpu: bool) -> Array:
    if not on_cpu:
        return c.tokens * 0.0
    tensor = float(shape.largest_parameter)
    if shape.adapter is not None:
        tensor = min(tensor, shape.trained_parameters / shape.layers)
    elements = np.where(c.backend == ZERO, shape.trained_parameters / c.shard, tensor)
    # Weights below float32 are copied, too.
    copies = _COPIES + (1.0 if d.master < _FLOAT32 else 0.0)
    return elements * copies * _FLOAT32


def _step_seconds(_settings: AdamW8bit, shape: ModelShape, c: Candidates, rates: Rates, _network: Network) -> Array:
    seconds = shape.trained_parameters / c.holders * _PASSED_BYTES / rates.memory_bytes
    return seconds * (1.0 if rates.serial else 0.0)


OPTIMIZER = PredictedOptimizer[AdamW8bit](_step_bytes, _step_seconds)
