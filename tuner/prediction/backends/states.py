"""States: bytes of parameters, gradients and buffers that a backend keeps on one rank at each moment of a step.

Source: ZeRO, Rajbhandari et al. (arXiv:1910.02054, sections 3.1 and 5), as each backend implements it.
"""

from dataclasses import dataclass, replace

import numpy as np

from shardtune.tuner.prediction.candidates import FSDP1, Array, Candidates, Dtypes
from shardtune.tuner.prediction.model_shape import ModelShape


@dataclass(frozen=True)
class States:
    """Bytes of model states on one rank, at several times in a step. Bytes that offloading moves into host memory are
    left out."""

    parameters: Array
    masters: Array
    optimizer: Array
    gradients_early: Array
    """Bytes of gradients when backward begins: those accumulated over earlier micro batches, and buffers that always
    exist."""
    gradients_second: Array
    """Bytes of gradients while backward passes its second block, when the gradients of its first block exist."""
    gradients_next: Array
    """Bytes of gradients while backward passes the last block but one."""
    gradients_last: Array
    """Bytes of gradients while backward passes its last block, the model's first."""
    gradients_late: Array
    """Bytes of gradients when backward ends."""
    gathered_loss: Array
    gathered_backward: Array
    gathered_middle: Array
    """Bytes of gathered parameters while backward passes a block that is neither its first nor its last."""
    gathered_last: Array
    """Bytes of gathered parameters while backward passes its last block, when no further unit is prefetched."""
    buckets: Array
    """Bytes of communication buffers in backward after the first block's gradients have been reduced."""
    buckets_loss: Array
    buckets_step: Array
    """Bytes of communication buffers during the optimizer step."""
    buckets_first: Array
    """Bytes of communication buffers while backward passes its first block."""
    unit_gradients: Array
    """Bytes of the whole gradients of an FSDP unit before they are reduced."""
    end: Array
    """Bytes that FSDP needs to reduce the root unit's gradients when backward ends, gathered parameters included."""
    step: Array
    """Bytes of the temporaries of the optimizer step."""
    reduced_unit: Array | float = 0.0
    """Bytes of an FSDP unit's gradients and buffers while they are reduced, less the bytes of its parameters, which are
    freed before."""
    freed_late: Array | float = 0.0
    """Bytes of buffers from the reduction of an FSDP unit that the allocator still reserves for the stream of the
    reduction after they are freed."""


def tied_gradients(shape: ModelShape, c: Candidates) -> Array:
    """Number of gradients of the token table that exist at once. A table tied to the output head has three: one from
    each use, and their sum (two with a loss in chunks)."""
    # The head of a loss in chunks gives a gradient of its own, to which autograd adds in place; the product's is a view.
    tied = np.where(c.loss_chunk > 0, 2.0, 3.0)
    return tied if shape.tied else np.ones_like(tied)


def with_cast_copies(states: States, shape: ModelShape, c: Candidates, d: Dtypes) -> States:
    """Add to the model states the copies of weights that autocast casts, whatever the backend.

    Matrix products save a cast copy of each weight for backward, which no backend frees.
    """
    # Until forward ends, autocast holds the copies of checkpointed blocks too (torch 2.13, `cached_cast`: of leaves, so
    # not of FSDP1's views of its flat parameters); recomputation makes them again, block by block. Outside the blocks
    # only the head multiplies.
    cast = float(d.compute if d.compute != d.master else 0) / c.tensor
    checkpointed = c.checkpointed(shape.layers)
    saved = cast * (shape.layers - checkpointed) * shape.block_parameters
    recomputed = saved + cast * np.minimum(checkpointed, 1.0) * shape.block_parameters
    # Frozen weights are no cached leaves either.
    caches = (c.backend != FSDP1) & (shape.adapter is None)
    at_loss = np.where(~caches, recomputed, cast * float(shape.layers * shape.block_parameters))
    table = cast * float(shape.head_parameters)
    return replace(
        states,
        gathered_loss=states.gathered_loss + at_loss + table,
        gathered_backward=states.gathered_backward + recomputed,
        gathered_middle=states.gathered_middle + recomputed,
        gathered_last=states.gathered_last + recomputed,
        end=states.end + table,
    )
