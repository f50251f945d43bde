"""Bytes of one repeated block's activations, and what a number of blocks keeps of them."""

from dataclasses import dataclass, replace

import numpy as np

from shardtune.tuner.prediction.candidates import Array, Candidates


@dataclass(frozen=True)
class BlockBytes:
    """Activation bytes of one block on one rank for one micro batch."""

    checkpointed: Array
    """Bytes that a block with activation checkpointing keeps from forward to backward under the candidate's
    checkpointing mode."""
    not_checkpointed: Array
    """Bytes that a block without checkpointing keeps from forward to backward."""
    everything: Array
    """Bytes of all tensors that a block saves for its backward without checkpointing. In a checkpointed block,
    recomputation restores them for one block at a time."""
    gradients: Array
    """Largest total of bytes, inside a block's backward, of the gradients of activations that exist at the same
    time."""

    without_backward: int = 0
    """Number of the model's first blocks that backward does not reach, because nothing in or before them is trained."""
    layers: int = 0
    """Number of blocks of the model; the byte counts of the other fields apply to each of them."""
    offloaded: Array | float = 0.0
    """Bytes that a checkpointed block keeps in host memory from forward to backward: its input."""
    recomputed: Array | float = 0.0
    """Bytes that the backward of a block without checkpointing restores by recomputation: what a budget of its
    activations does not let it keep."""

    def with_offload(self, c: Candidates, layers: int) -> "BlockBytes":
        """Return a copy in which the bytes of a checkpointed block's input are moved from `checkpointed` (device
        memory) to `offloaded` (host memory), for candidates with activation offload."""
        is_offloaded = c.activation_offload > 0
        return replace(
            self,
            layers=layers,
            checkpointed=np.where(is_offloaded, 0.0, self.checkpointed),
            offloaded=np.where(is_offloaded, self.checkpointed, 0.0),
        )

    def checkpointed_before(self, c: Candidates, number: int) -> Array:
        """Number of checkpointed blocks that come before block `number` (counted from 1) and that backward reaches."""
        return np.maximum(c.checkpointed(number - 1) - c.checkpointed(self.without_backward), 0.0)

    def number_offloaded(self, c: Candidates) -> Array:
        """Number of blocks whose input is offloaded to host memory in a micro batch."""
        return (c.activation_offload > 0) * self.checkpointed_before(c, self.layers + 1)

    def kept(self, c: Candidates, blocks: int) -> Array:
        """Bytes of activations that the first `blocks` blocks keep for backward."""
        unpassed = min(blocks, self.without_backward)
        checkpointed = c.checkpointed(blocks) - c.checkpointed(unpassed)
        return checkpointed * self.checkpointed + (blocks - unpassed - checkpointed) * self.not_checkpointed

    def working(self, c: Candidates, number: int) -> Array:
        """Bytes that the backward of block number `number` needs: activations restored by recomputation, and gradients."""
        is_checkpointed = c.checkpointed(number) - c.checkpointed(number - 1)
        restored = is_checkpointed * np.maximum(self.everything - self.checkpointed, 0.0)
        restored = restored + (1.0 - is_checkpointed) * self.recomputed
        return restored + self.gradients + self._fetched_ahead(c, number) * self.offloaded

    def _fetched_ahead(self, c: Candidates, number: int) -> Array:
        """Whether the input of an earlier block is already back from host memory while block `number` runs backward:
        once backward has reached a checkpointed block, one input is always fetched ahead."""
        has_begun = c.checkpointed(self.layers) > c.checkpointed(number - 1)
        return np.where(has_begun & (self.checkpointed_before(c, number) > 0), 1.0, 0.0)
