"""Sizes of a model's single parameters, where a backend treats each by its own size."""

import numpy as np

from tuner.footprint.candidates import Array
from tuner.model_shape import ModelShape


def block_tensors(shape: ModelShape) -> tuple[int, ...]:
    """Elements of each parameter of one block, as transformers 5 keeps them.

    Models with LayerNorm (GPT-2, GPT-NeoX, MPT) have one projection for q, k and v; experts are stacked, gate beside up.
    """
    hidden, ffn, experts = shape.hidden, shape.ffn, shape.experts
    outputs = [shape.query + 2 * shape.kv] if shape.norm == "layer" else [shape.query, shape.kv, shape.kv]
    matrices = [hidden * width for width in outputs] + [shape.query * hidden]
    if experts > 1:
        matrices += [experts * 2 * hidden * ffn, experts * hidden * ffn, experts * hidden]
    else:
        matrices += [hidden * ffn] * (3 if shape.mlp == "gated" else 2)
    vectors = [hidden, hidden]
    if shape.biases:
        vectors += [hidden, hidden, *outputs, hidden, ffn, hidden]
    elif shape.qkv_bias:
        vectors += outputs
    if shape.qk_norm:
        vectors += [shape.head_dim, shape.head_dim]
    return (*matrices, *vectors)


def outside_tensors(shape: ModelShape) -> tuple[int, ...]:
    """Elements of each parameter that is in no block."""
    tables = [shape.embedding_parameters] * (1 if shape.tied else 2)
    positions = [shape.learned_positions * shape.hidden] if shape.learned_positions else []
    return (*tables, *positions, *[shape.hidden] * (2 if shape.biases else 1))


def elements_up_to(shape: ModelShape, threshold: Array) -> Array:
    """Elements of the whole model in parameters of at most that many each."""
    sizes = np.array([*block_tensors(shape), *outside_tensors(shape)], dtype=float)
    times = np.array([shape.layers] * len(block_tensors(shape)) + [1] * len(outside_tensors(shape)))
    small = sizes[:, None] <= np.ravel(threshold)
    total: Array = ((sizes * times)[:, None] * small).sum(axis=0)
    return total
