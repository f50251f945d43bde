"""What a backend keeps on one rank, moment by moment: every backend's answer.

Source: ZeRO, Rajbhandari et al. (arXiv:1910.02054, sections 3.1 and 5), as each backend does it.
"""

from dataclasses import dataclass

from shardtune.tuner.prediction.candidates import Array


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
