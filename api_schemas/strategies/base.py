"""What every strategy shares."""

from typing import Literal

Checkpointing = Literal["none", "selective", "full"]
"""Activation checkpointing of the repeated blocks.

`selective` keeps the results of matrix products and attention and recomputes the rest (PyTorch's selective
activation checkpointing, the policy torchtitan calls `op`); `full` keeps only each block's input.
"""

GradSync = Literal["every", "reduce_scatter", "last"]
"""When gradients are reduced while accumulating: every micro batch; every micro batch within the shard group and
once across replicate groups; or once, after the last micro batch (unsharded gradients are then held)."""
