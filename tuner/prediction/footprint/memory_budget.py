"""Activation bytes of compiled blocks with a budget (`workers.blocks.memory_budget`)."""

import numpy as np

from shardtune.tuner.prediction.candidates import Array, Candidates

_BEYOND = 0.05
"""Part of the default activations that a block is expected to keep beyond its budget. torch's limit also counts inputs
that the block does not keep: at a budget of 0.5, a Llama of 2 blocks kept 0.53 (torch 2.13)."""


def kept(c: Candidates, boundary: Array, by_default: Array) -> Array:
    """Bytes that one block keeps from forward to backward: its input (`boundary`), and the budget's part of what it
    keeps by default beyond its input.

    This is torch's limit, not an estimate of what it chooses: `choose_saved_values_set` solves a knapsack whose
    capacity is inputs + budget × (default - inputs) (torch 2.13, torch/_functorch/partitioners.py). Tensors are kept
    whole or not at all, so a block often keeps less.
    """
    if not np.any(c.activation_budget < 1):
        # Most spaces have none, and an enumeration comes by here thousands of times.
        return by_default
    within = boundary + (c.activation_budget + _BEYOND) * np.maximum(by_default - boundary, 0.0)
    return np.where(c.activation_budget < 1, np.minimum(within, by_default), by_default)
