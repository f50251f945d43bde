"""Work that a block's backward does in addition where its MLP is computed over slices of the tokens."""

from typing import NamedTuple

import numpy as np

from shardtune.tuner.prediction.candidates import ATTENTION_ALONE, SELECTIVE, Array, Candidates, Dtypes, Implementation
from shardtune.tuner.prediction.model_shape import ModelShape

_KERNELS = 45.0
"""Host and device cost, in kernel launches, that each slice adds when the MLP is computed in slices of tokens. It
counts five operators of an MLP in forward, the same again in backward's repetition, twice as many for gradients, and
the hooks for saved tensors."""


class AddedWork(NamedTuple):
    """Work that is added to one block's passes in one micro batch if its MLP is computed over slices of the tokens, one
    after another."""

    flops: Array | float
    bytes: Array | float
    kernels: Array | float


def activation_traffic(shape: ModelShape, dtypes: Dtypes) -> float:
    """Bytes of memory traffic per token between the linear layers of one MLP in forward, uncompiled."""
    return {"gated": 5.0, "gelu": 2.0, "gelu_tanh": 14.0}[shape.mlp] * dtypes.compute * shape.ffn


def added_work(shape: ModelShape, c: Candidates, dtypes: Dtypes, impl: Implementation, recomputed: Array) -> AddedWork:
    """Work that is added to one block if its MLP is computed over slices of the tokens, because backward repeats each
    slice's forward.

    `recomputed`: fraction of the blocks that activation checkpointing repeats in any case. There the slices add no
    further repetition, except of the matrix products that selective checkpointing would otherwise keep.
    """
    if not np.any(c.mlp_slices > 1):
        return AddedWork(0.0, 0.0, 0.0)
    is_sliced, matrices = (c.mlp_slices > 1) * 1.0, float(shape.mlp_matrix_parameters)
    # The repetition ends before the last product, of which backward needs the inputs alone.
    products = 2.0 * (matrices - shape.hidden * shape.ffn)
    keeps_products = (c.checkpointing == SELECTIVE) & (c.selective_keeps != ATTENTION_ALONE)
    anew = np.where(keeps_products, 1.0, 1.0 - recomputed)
    copied = 6.0 * dtypes.compute * shape.hidden  # outputs and gradients are joined, inputs split
    traffic = c.tokens * ((1.0 - recomputed) * activation_traffic(shape, dtypes) + copied)
    # Each slice's gradients of the matrices are added to those before.
    traffic = traffic + (c.mlp_slices - 1.0) * 3.0 * dtypes.compute * matrices
    if impl.autocast and dtypes.compute < dtypes.master:
        # Each repetition is outside of the autocast that keeps cast weights, and casts them anew.
        traffic = traffic + c.mlp_slices * matrices * (dtypes.master + dtypes.compute)
    return AddedWork(is_sliced * c.tokens * anew * products, is_sliced * traffic, is_sliced * c.mlp_slices * _KERNELS)
