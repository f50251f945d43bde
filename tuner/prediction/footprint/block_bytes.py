"""Bytes of one repeated block's activations, and what a number of blocks keeps of them."""

from dataclasses import dataclass

import numpy as np

from shardtune.tuner.prediction.candidates import Array, Candidates


@dataclass(frozen=True)
class BlockBytes:
    """Activation bytes of one block for one micro batch on one rank."""

    checkpointed: Array
    """Bytes that a checkpointed block keeps from forward to backward under the candidate's checkpointing mode."""
    not_checkpointed: Array
    """Bytes that a block without checkpointing keeps from forward to backward."""
    everything: Array
    """Bytes of all tensors that a block without checkpointing saves; recomputation restores them for one block at a
    time."""
    gradients: Array
    """Bytes of the gradients of activations that exist at once inside a block's backward."""

    without_backward: int = 0
    """Number of first blocks that backward does not pass, since nothing in or before them is trained."""

    def kept(self, c: Candidates, blocks: int) -> Array:
        """Bytes of activations that the first `blocks` blocks keep for backward."""
        unpassed = min(blocks, self.without_backward)
        checkpointed = c.checkpointed(blocks) - c.checkpointed(unpassed)
        return checkpointed * self.checkpointed + (blocks - unpassed - checkpointed) * self.not_checkpointed

    def working(self, c: Candidates, number: int) -> Array:
        """Bytes that block number `number` needs while it runs backward: restored activations and gradients."""
        is_checkpointed = c.checkpointed(number) - c.checkpointed(number - 1)
        return is_checkpointed * np.maximum(self.everything - self.checkpointed, 0.0) + self.gradients
