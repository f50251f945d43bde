"""Prediction for AdamW with stochastic rounding: float32 copies of a piece of each parameter, and more passes than a fused
kernel over bfloat16 (`workers/rank/strategies/optimizers/adamw_bf16.py`)."""

import numpy as np

from shardtune.api_schemas.training.optimizers import AdamWBf16
from shardtune.tuner.prediction.candidates import DDP, FSDP2, Array, Candidates, Dtypes
from shardtune.tuner.prediction.model_shape import ModelShape
from shardtune.tuner.prediction.optimizers.record import PredictedOptimizer
from shardtune.tuner.prediction.rates import Network, Rates

_COPIES_BYTES = 20.0
"""Bytes of temporaries per element of a piece (the part of a parameter that a step of AdamW in bfloat16 updates at a
time): float32 copies of weight, gradient and two moments, and the random numbers."""
_PIECE = {True: float(1 << 16), False: float(1 << 22)}
"""Number of elements of a piece (the part of a parameter that a step updates at a time); the key is whether ranks are
on the CPU."""
_PASSED_BYTES = 128.0
"""Bytes of memory traffic per element that a step of AdamW in bfloat16 has beyond one fused pass: copies, random
numbers, and the rounding of three results."""


def _step_bytes(_settings: AdamWBf16, shape: ModelShape, c: Candidates, _d: Dtypes, on_cpu: bool) -> Array:
    largest = np.where(c.backend == DDP, 1.0, 1.0 / c.shard) * float(shape.largest_parameter)
    # FSDP1 and ZeRO join parameters to flat ones, of which even the smallest is larger than most parameters.
    elements = np.where((c.backend == DDP) | (c.backend == FSDP2), largest, shape.trained_parameters / c.shard)
    return np.minimum(elements, _PIECE[on_cpu]) * _COPIES_BYTES


def _step_seconds(_settings: AdamWBf16, shape: ModelShape, c: Candidates, rates: Rates, _network: Network) -> Array:
    return shape.trained_parameters / c.holders * _PASSED_BYTES / rates.memory_bytes


OPTIMIZER = PredictedOptimizer[AdamWBf16](_step_bytes, _step_seconds)
