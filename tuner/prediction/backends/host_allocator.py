"""Page-locked host memory: torch's host allocator rounds each tensor up to a power of two.

Source: torch 2.13 `ATen/core/CachingHostAllocator.h` (`PowerOf2Ceil`); no size is exempt by default
(`c10/core/AllocatorConfig.h`, `pinned_max_round_threshold_`).
"""

import numpy as np

from shardtune.tuner.prediction.candidates import Array
from shardtune.tuner.prediction.model_shape import ModelShape
from shardtune.tuner.prediction.tensors import block_tensors, outside_tensors


def allocated(sizes: Array) -> Array:
    """Bytes that torch's allocator of pinned host memory takes for tensors of these sizes in bytes: it rounds up to
    powers of two."""
    mantissa, exponent = np.frexp(np.asarray(sizes, dtype=float))
    total: Array = np.where(mantissa == 0.5, sizes, np.ldexp(1.0, exponent))
    return np.where(np.asarray(sizes) > 0, total, 0.0)


def growth(sizes: Array, counts: Array) -> Array:
    """Factor by which rounding to powers of two enlarges pinned tensors: `counts` tensors of `sizes` bytes, summed over
    the first axis."""
    exact = (sizes * counts).sum(axis=0)
    rounded: Array = (allocated(sizes) * counts).sum(axis=0) / np.maximum(exact, 1.0)
    return np.where(exact > 0, rounded, 1.0)


def growth_per_parameter(shape: ModelShape, bytes_of_element: Array) -> Array:
    """Factor by which the allocator's rounding to powers of two enlarges a model whose parameters are pinned one by one.

    `bytes_of_element`: bytes on one rank, divided by the elements of the whole model.
    """
    blocks, outside = block_tensors(shape), outside_tensors(shape)
    elements = np.array([*blocks, *outside], dtype=float)[:, None]
    counts = np.array([shape.layers] * len(blocks) + [1] * len(outside), dtype=float)[:, None]
    return growth(elements * np.ravel(bytes_of_element), counts)


def growth_per_unit(shape: ModelShape, bytes_of_element: Array, blocks: Array) -> Array:
    """Factor by which rounding to powers of two enlarges a model that is pinned as one flat tensor per FSDP unit of
    `blocks` blocks."""
    per_element = np.ravel(bytes_of_element)
    units = np.ceil(shape.layers / blocks)
    unit = shape.block_parameters * np.minimum(blocks, shape.layers) * per_element
    remainder = shape.block_parameters * (shape.layers - blocks * (units - 1)) * per_element
    root = float(shape.outside_parameters) * per_element
    sizes = np.stack(np.broadcast_arrays(unit, remainder, root))
    ones = np.ones_like(units)
    return growth(sizes, np.stack(np.broadcast_arrays(units - 1, ones, ones)))
