"""Memory traffic and kernels of the loss: of all logits, in chunks of tokens, or in compiled chunks."""

import numpy as np

from shardtune.tuner.prediction.backends import trained_fractions as trained_part
from shardtune.tuner.prediction.candidates import Array, Candidates, Dtypes, Implementation
from shardtune.tuner.prediction.model_shape import ModelShape

FORWARD = 0.4
"""Fraction of the loss's memory traffic that belongs to the forward pass."""
_KERNELS = 30.0
"""Number of kernels that the loss of one chunk launches, forward and backward."""
_COMPILED_KERNELS = 70.0
"""Host time of a compiled chunk, forward and backward, in kernel launches. It has a third of an eager chunk's kernels, but
Dynamo checks its guards at each of two calls: a chunk of 16 tokens took a CPU rank 218 µs, and an eager one 90 µs."""
_COMPILED_PASSES = 4.0
"""Number of times that a compiled chunk reads or writes each logit, in the dtype of the head's output: forward reads it
for the largest logit and for the sum of exponentials, and backward reads it and writes the gradient in its place. Counted
from the functions of `workers.rank.model.chunk_math`, not fitted."""


def traffic(shape: ModelShape, c: Candidates, dtypes: Dtypes, impl: Implementation) -> Array:
    """Bytes of memory traffic of a micro batch's loss: between the logits and their gradient, and for the sum of the
    output head's gradient over chunks."""
    vocab = shape.vocab if impl.language_head else 0
    # Without a split of the vocabulary each rank computes the whole loss, from logits whose products are split.
    logits = c.tokens * vocab * (1.0 if impl.splits_logits else c.tensor)
    again = FORWARD * (c.loss_chunk > 0)
    eager = logits * (22.0 + 2.0 * dtypes.compute) * (1.0 + again)
    summed = _summed(shape, c, dtypes, impl)
    whole: Array = np.where(c.compiled > 0, eager + summed, (eager + summed) * 1.5)
    fused = logits * _COMPILED_PASSES * dtypes.compute
    return np.where(c.loss_compiled > 0, fused + summed * np.where(c.compiled > 0, 1.0, 1.5), whole)


def later_chunks_kernels(c: Candidates) -> Array:
    """Number of kernels that the chunks after the first one launch in a micro batch."""
    return (c.loss_chunks - 1.0) * np.where(c.loss_compiled > 0, _COMPILED_KERNELS, _KERNELS)


def _summed(shape: ModelShape, c: Candidates, dtypes: Dtypes, impl: Implementation) -> Array:
    """Bytes of memory traffic to sum the output head's gradient over the chunks of a micro batch's loss, in fp32."""
    head = float(shape.vocab * shape.hidden) * trained_part.outside(shape, impl) / c.tensor * impl.language_head
    return (c.loss_chunks - 1.0) * head * (8.0 + np.where(dtypes.compute < 4, 2.0 * dtypes.compute, 0.0))
