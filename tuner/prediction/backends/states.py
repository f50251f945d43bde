"""What a backend keeps on one rank, moment by moment: every backend's answer.

Source: ZeRO, Rajbhandari et al. (arXiv:1910.02054, sections 3.1 and 5), as each backend does it.
"""

from dataclasses import dataclass, replace

import numpy as np

from shardtune.tuner.prediction.candidates import FSDP1, Array, Candidates, Dtypes
from shardtune.tuner.prediction.model_shape import ModelShape


@dataclass(frozen=True)
class States:
    """Bytes of one rank. What offloading puts into host memory is already taken out."""

    parameters: Array
    masters: Array
    optimizer: Array
    gradients_early: Array
    """When backward begins: those of earlier micro batches, and buffers that always exist."""
    gradients_second: Array
    """When the second block of backward runs: the first one's are there."""
    gradients_next: Array
    """When the last block but one of backward runs."""
    gradients_last: Array
    """When the last block of backward runs."""
    gradients_late: Array
    """When backward ends."""
    gathered_loss: Array
    gathered_backward: Array
    gathered_middle: Array
    """While a block runs that is neither backward's first nor its last."""
    gathered_last: Array
    """When the last block of backward runs: nothing arrives any more."""
    buckets: Array
    """Communication buffers that exist in backward once a block has been reduced."""
    buckets_loss: Array
    buckets_step: Array
    """While the optimizer steps."""
    buckets_first: Array
    """While the first block of backward runs."""
    unit_gradients: Array
    """Whole gradients of the unit in work, as they stand before its reduction."""
    end: Array
    """FSDP: what the root unit's reduction needs when backward ends, gathered parameters included."""
    step: Array
    """Temporaries of the optimizer step."""


def with_cast_copies(held: States, shape: ModelShape, c: Candidates, d: Dtypes) -> States:
    """The same with what autocast adds, whatever the backend: products save a cast copy of each weight, which no backend frees.

    Until forward ends, autocast holds the copies of checkpointed blocks too (torch 2.13, `cached_cast`: of leaves, so not of
    FSDP1's views of its flat parameters); recomputation makes them again, block by block. Of what is in no block only the head
    multiplies.
    """
    cast = float(d.compute if d.compute != d.master else 0) / c.tensor
    checkpointed = c.checkpointed(shape.layers)
    kept = cast * (shape.layers - checkpointed) * shape.block_parameters
    again = kept + cast * np.minimum(checkpointed, 1.0) * shape.block_parameters
    at_loss = np.where(c.backend == FSDP1, again, cast * float(shape.layers * shape.block_parameters))
    table = cast * float(shape.embedding_parameters)
    return replace(
        held,
        gathered_loss=held.gathered_loss + at_loss + table,
        gathered_backward=held.gathered_backward + again,
        gathered_middle=held.gathered_middle + again,
        gathered_last=held.gathered_last + again,
        end=held.end + table,
    )
