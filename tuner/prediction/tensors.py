"""Sizes of a model's individual parameters, for backends that treat each parameter by its own size."""

import numpy as np

from shardtune.tuner.prediction.candidates import Array
from shardtune.tuner.prediction.model_shape import ModelShape


def block_modules(shape: ModelShape) -> list[tuple[int, ...]]:
    """Numbers of elements of the weight, and of the bias if there is one, of each module of one block, as transformers
    5 defines them."""
    if shape.step_trace is not None:
        return [(size,) for size in shape.step_trace.block_tensors] or [(1,)]
    hidden, ffn, experts = shape.hidden, shape.ffn, shape.experts
    # Models with LayerNorm (GPT-2, GPT-NeoX, MPT) have one projection for q, k and v.
    outputs = [shape.query + 2 * shape.kv] if shape.norm == "layer" else [shape.query, shape.kv, shape.kv]
    biased = shape.biases or shape.qkv_bias
    modules: list[tuple[int, ...]] = [(hidden * width, width) if biased else (hidden * width,) for width in outputs]
    if experts > 1:
        # Experts are stacked, gate beside up.
        output = (shape.query * hidden, hidden) if shape.o_bias else (shape.query * hidden,)
        modules += [output, (experts * 2 * hidden * ffn, experts * hidden * ffn), (experts * hidden,)]
    else:
        widths = [hidden, *([ffn, ffn] if shape.mlp == "gated" else [ffn]), hidden]
        sizes = [shape.query * hidden] + [hidden * ffn] * (len(widths) - 1)
        has_bias = [shape.biases or shape.o_bias, *[shape.biases or shape.mlp_bias] * (len(widths) - 1)]
        modules += [
            (size, width) if biased else (size,) for size, width, biased in zip(sizes, widths, has_bias, strict=True)
        ]
    modules += [(hidden, hidden) if shape.biases else (hidden,)] * 2
    if shape.qk_norm:
        modules += [(shape.head_dim,)] * 2
    if shape.adapter is not None:
        rank = shape.adapter.rank
        modules += [(rank * width,) for matrix in shape.adapter.matrices for width in matrix]
    return modules


def block_tensors(shape: ModelShape) -> tuple[int, ...]:
    """Numbers of elements of each parameter of one block."""
    return tuple(size for module in block_modules(shape) for size in module)


def outside_tensors(shape: ModelShape) -> tuple[int, ...]:
    """Numbers of elements of each parameter that is in no block."""
    if shape.step_trace is not None:
        return shape.step_trace.outside_tensors
    tables = [shape.embedding_parameters] * (1 if shape.tied else 2)
    positions = [shape.learned_positions * shape.hidden] if shape.learned_positions else []
    return (*tables, *positions, *[shape.hidden] * (2 if shape.biases else 1))


def tensor_count(shape: ModelShape) -> float:
    """Number of parameters of the whole model."""
    return float(shape.layers * len(block_tensors(shape)) + len(outside_tensors(shape)))


def elements_up_to(shape: ModelShape, threshold: Array) -> Array:
    """Number of elements in the model's parameters of at most `threshold` elements each."""
    sizes = np.array([*block_tensors(shape), *outside_tensors(shape)], dtype=float)
    times = np.array([shape.layers] * len(block_tensors(shape)) + [1] * len(outside_tensors(shape)))
    small = sizes[:, None] <= np.ravel(threshold)
    total: Array = ((sizes * times)[:, None] * small).sum(axis=0)
    return total


def modules_above(shape: ModelShape, threshold: Array) -> Array:
    """Number of the model's modules that have a parameter of more than `threshold` elements."""
    largest = np.array([max(module) for module in block_modules(shape)] + list(outside_tensors(shape)), dtype=float)
    times = np.array([shape.layers] * len(block_modules(shape)) + [1] * len(outside_tensors(shape)))
    total: Array = (times[:, None] * (largest[:, None] > np.ravel(threshold))).sum(axis=0)
    return total


def buckets_filled(shape: ModelShape, bucket: Array) -> Array:
    """Number of buckets of at most `bucket` elements that the model's gradients fill in turn; a larger gradient has a
    bucket of its own.

    In DeepSpeed 0.19.8 (`reduce_independent_p_g_buckets_and_remove_grads`), a bucket is reduced when the next gradient
    does not fit.
    """
    bucket = np.asarray(bucket, dtype=float)
    sent = np.zeros_like(bucket)
    filled = np.zeros_like(bucket)
    for size in reversed(block_tensors(shape)):
        full = (filled > 0) & (filled + size > bucket)
        sent, filled = sent + full, np.where(full, 0.0, filled) + size
    model_buckets = np.ceil(shape.parameters / np.maximum(bucket, 1.0))
    count: Array = np.where(bucket >= shape.block_parameters, model_buckets, shape.layers * (sent + 1.0) + 2.0)
    return count
