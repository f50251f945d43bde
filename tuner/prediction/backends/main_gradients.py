"""Buckets in which DDP reduces the gradients of programs with main gradients (`Implementation.main_gradients`).

What nanotron did when its sweep ran (huggingface/nanotron at e24d2483 of 19 February 2025, which adds
`scripts/scaling_benchmarks.py`, the script of the sweep).
"""

import numpy as np

from shardtune.tuner.prediction.candidates import Array, Candidates, Dtypes
from shardtune.tuner.prediction.model_shape import ModelShape
from shardtune.tuner.prediction.tensors import outside_tensors


def bucket_count(shape: ModelShape, c: Candidates, d: Dtypes) -> Array:
    """Number of calls in which DDP reduces all gradients once: its hook adds a bucket of gradients in the compute dtype
    to the fp32 buffer, and sends that part of the buffer in one coalesced call (`optim/gradient_accumulator.py`,
    `get_fp32_accum_hook`). A gradient that reaches the bucket's size closes the bucket (torch `reducer.cpp`,
    `compute_bucket_assignment_by_size`)."""
    bucket = np.asarray(c.ddp_bucket / d.compute * c.tensor, dtype=float)
    closed, filled = np.zeros_like(bucket), np.zeros_like(bucket)
    for size in [*_block_matrices(shape) * int(shape.layers), *outside_tensors(shape)]:
        filled = filled + size
        full = filled >= bucket
        closed, filled = closed + full, np.where(full, 0.0, filled)
    return closed + (filled > 0)


def _block_matrices(shape: ModelShape) -> list[int]:
    """Numbers of elements of a block's matrices in the order of backward: gate and up are one matrix, and so are q, k
    and v (`models/llama.py`)."""
    up = 2 * shape.ffn if shape.mlp == "gated" else shape.ffn
    return [shape.hidden * width for width in (shape.ffn, up, shape.query, shape.query + 2 * shape.kv)]
