"""What a backend's own hooks and loops cost the host, in launches of an operator (`Rates.launch_s`).

On a GPU it hides behind kernels as launches do; on a CPU rank it adds up. The counts are those of
`python -m benchmarks.host_costs` on CPU ranks (docs/measurements/predictor.md), where a model too narrow to compute
anything is trained under each strategy: milliseconds over those of an operator, per unit, parameter and micro batch.
"""

import numpy as np

from shardtune.tuner.prediction.footprint.candidates import (
    DDP,
    FSDP1,
    FSDP2,
    ZERO,
    Array,
    Candidates,
    Dtypes,
    Implementation,
)
from shardtune.tuner.prediction.footprint.tensors import block_tensors, outside_tensors
from shardtune.tuner.prediction.model_shape import ModelShape

_CAST = 3.0
"""DDP in mixed precision: each parameter is cast by a parametrization of its own, forward and backward."""
_GATHER = (35.0, 2.0)
"""FSDP2, per gather of a unit and of each parameter in it: copies in and out, views made, registered and freed."""
_REDUCE = (160.0, 4.0)
"""Likewise per reduction: copies, a DTensor made of each gradient, and added to the last micro batch's."""
_ALONE = 0.5
"""Of both, in a group of one rank: copies without a collective."""
_FSDP1_UNIT = 155.0
"""Per unit: hooks around one flat parameter, whether it is gathered or not."""
_ZERO_TENSOR = {1: 1.5, 2: 5.0, 3: 38.0}
"""By stage, per parameter: gradient hooks; stage 3's coordinator fetches and releases every module in Python."""
_STEP_TENSOR = {DDP: 2.0, FSDP1: 0.0, FSDP2: 6.0, ZERO: 1.0}
"""Per parameter, of an optimizer step: norm, clipping and update; FSDP2's pass through DTensor's dispatch."""


def micro_batch_launches(shape: ModelShape, c: Candidates, dtypes: Dtypes, impl: Implementation) -> Array:
    """Of one micro batch, on average over the step."""
    tensors = _tensors(shape)
    units = np.ceil(shape.layers / c.blocks_per_unit) + 1.0
    mixed = dtypes.compute != dtypes.master and not impl.autocast
    gathers = np.where(c.regather > 1, 2.0, 1.0)
    reductions = np.where(c.sync_last > 0, 1.0 / np.maximum(c.accumulation, 1.0), 1.0)
    each = gathers * np.array(_GATHER)[:, None] + reductions * np.array(_REDUCE)[:, None]
    fsdp2 = (units * each[0] + tensors * each[1]) * np.where(c.shard > 1, 1.0, _ALONE)
    is_zero = c.backend == ZERO
    total: Array = np.select(
        [c.backend == DDP, c.backend == FSDP1, c.backend == FSDP2, *(is_zero & (c.stage == s) for s in _ZERO_TENSOR)],
        [_CAST * tensors * mixed, _FSDP1_UNIT * units, fsdp2, *(each * tensors for each in _ZERO_TENSOR.values())],
        0.0,
    )
    return total


def step_launches(shape: ModelShape, c: Candidates) -> Array:
    """Of one optimizer step."""
    backends, each = zip(*_STEP_TENSOR.items(), strict=True)
    total: Array = _tensors(shape) * np.select([c.backend == backend for backend in backends], each, _STEP_TENSOR[DDP])
    return total


def _tensors(shape: ModelShape) -> float:
    return float(shape.layers * len(block_tensors(shape)) + len(outside_tensors(shape)))
