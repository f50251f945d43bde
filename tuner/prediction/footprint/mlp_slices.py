"""Activation bytes of blocks whose MLP is computed over slices of the tokens (`workers.blocks.mlp_slices`)."""

import numpy as np

from shardtune.tuner.prediction.candidates import Array, Candidates, Dtypes, Implementation
from shardtune.tuner.prediction.model_shape import ModelShape


def inner_bytes(shape: ModelShape, dtypes: Dtypes) -> float:
    """Activation bytes per token that one MLP saves between its linear layers."""
    # gated: gate, silu(gate), up, product. gelu: input and output. gelu_tanh (NewGELUActivation): x, 0.5x, tanh, 1+tanh, product.
    # The product is the last layer's input.
    width = ({"gated": 3, "gelu": 1, "gelu_tanh": 4}[shape.mlp] + shape.saved.down) * shape.ffn
    return float(dtypes.compute * width)


def saved(shape: ModelShape, c: Candidates, dtypes: Dtypes, impl: Implementation, whole: Array) -> Array:
    """Bytes that one block saves for backward, computed from `whole`, the bytes without slices. If the MLP is computed
    over slices of the tokens, it saves only its input, in the dtype that the norm before it returns."""
    if not np.any(c.mlp_slices > 1):
        # Most spaces have none, and an enumeration comes by here thousands of times.
        return whole
    row = shape.hidden * ((4 if impl.autocast else dtypes.compute) - dtypes.compute * shape.saved.mlp)
    sliced = whole + c.tokens * (row - inner_bytes(shape, dtypes))
    return np.where(c.mlp_slices > 1, sliced, whole)


def flowing(shape: ModelShape, c: Candidates, dtypes: Dtypes, impl: Implementation, whole: Array) -> Array:
    """Peak bytes inside a block's backward: of gradients, and of the slice of the MLP that is restored for them.
    `whole`: bytes if the MLP is computed over all tokens at once."""
    if not np.any(c.mlp_slices > 1):
        return whole
    size, hidden = dtypes.compute, float(shape.hidden)
    gradients = (3 if shape.mlp == "gated" else 2) * shape.ffn * size
    cast = size * hidden if impl.autocast and size < 4 else 0.0
    part = c.tokens / c.mlp_slices * (inner_bytes(shape, dtypes) + gradients + cast)
    # Gradients of the MLP's output and of its input, whose slices wait for the last one. A matrix's gradient is added to
    # that of the slices before.
    in_mlp = part + c.tokens * (2.0 * size * hidden) + shape.hidden * shape.ffn * size
    # The joined gradient beside its slices; then the norm's.
    after = c.tokens * hidden * 3.0 * size
    return np.where(c.mlp_slices > 1, np.maximum(in_mlp, after), whole)


def unkept_products(shape: ModelShape, c: Candidates) -> Array:
    """Elements per token of the results of an MLP's matrix products that selective checkpointing does not keep because
    the MLP is computed over slices of the tokens; 0 without slices."""
    width = float(shape.ffn * (2 if shape.mlp == "gated" else 1) + shape.hidden)
    if shape.adapter is not None:
        width += sum(
            shape.adapter.rank + outputs for inputs, outputs in shape.adapter.matrices if shape.ffn in (inputs, outputs)
        )
    return np.where(c.mlp_slices > 1, width, 0.0)
