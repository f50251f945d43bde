"""Prediction for Muon (torch 2.13 `optim/_muon.py`): one matrix after the other, in bf16; of sharded matrices each rank
computes a part, between gathers or reductions that DTensor puts in.

Per iteration of a matrix with m as its shorter side and M as its longer: the products 2 m² M, 2 m³ and 2 m² M. Wide
shards gather the matrix twice and the m × m product once. Tall shards sum the m × m product twice, and each rank then
squares it whole.
"""

import numpy as np

from shardtune.api_schemas.training.optimizers import Muon
from shardtune.tuner.prediction.candidates import FSDP2, Array, Candidates, Dtypes
from shardtune.tuner.prediction.collectives import ring_seconds
from shardtune.tuner.prediction.model_shape import ModelShape
from shardtune.tuner.prediction.optimizers.record import PredictedOptimizer
from shardtune.tuner.prediction.rates import Network, Rates

_BF16 = 2.0
_ELEMENTWISE = 8.0
"""Number of kernels that Muon launches for one matrix besides its iterations: momentum, norm, scaling, decay and
update."""
_PRODUCTS = 3.0
"""Kernels of one iteration."""


def _shards(c: Candidates) -> Array:
    """Number of ranks among which one matrix is sharded in Muon's optimizer step."""
    return np.where(c.backend == FSDP2, c.shard, 1.0)


def _step_bytes(_settings: Muon, shape: ModelShape, c: Candidates, d: Dtypes, _on_cpu: bool) -> Array:
    """Bytes of temporaries while Muon updates the largest matrix: one copy in the masters' dtype, two in bf16, and two
    square matrices of its shorter side."""
    ranks, largest = _shards(c), c.tokens * 0.0
    for rows, columns in set(shape.block_matrices):
        size, square = float(rows * columns), float(min(rows, columns) ** 2)
        own = (d.master + 2.0 * _BF16) * size / ranks
        # A gather along the second axis is copied into place once more.
        gathered = np.where(ranks > 1, 2.0 * _BF16 * size, 0.0) if rows <= columns else 0.0
        largest = np.maximum(largest, own + gathered + 2.0 * _BF16 * square)
    return largest


def _step_seconds(settings: Muon, shape: ModelShape, c: Candidates, rates: Rates, network: Network) -> Array:
    ranks, total = _shards(c), c.tokens * 0.0
    flops_per_s = rates.bf16_flops or rates.matmul_flops
    for rows, columns in shape.block_matrices:
        short, long = float(min(rows, columns)), float(max(rows, columns))
        is_wide = rows <= columns
        flops = 4.0 * short**2 * long / ranks + 2.0 * short**3 / (ranks if is_wide else 1.0)
        # Small inner dimensions do not reach the peak rate.
        seconds = flops / flops_per_s * (1.0 + rates.small_matmul / short)
        if is_wide:
            sent = 2.0 * ring_seconds(c.tokens * 0.0 + _BF16 * rows * columns, c.tokens * 0.0 + 1.0, ranks, network)
            sent = sent + ring_seconds(c.tokens * 0.0 + _BF16 * short**2, c.tokens * 0.0 + 1.0, ranks, network)
        else:
            square = c.tokens * 0.0 + _BF16 * short**2
            sent = 2.0 * ring_seconds(square, c.tokens * 0.0 + 1.0, ranks, network, "all_reduce")
        # Nothing overlaps: each product waits for the exchange before it.
        total = total + settings.ns_steps * (seconds + sent)
    launches = shape.layers * len(shape.block_matrices) * (_ELEMENTWISE + _PRODUCTS * settings.ns_steps)
    return shape.layers * total + (launches * rates.launch_s if rates.serial else 0.0)


OPTIMIZER = PredictedOptimizer[Muon](_step_bytes, _step_seconds)
