"""Work that the backward of compiled blocks repeats to stay within a budget of activations."""

from shardtune.tuner.prediction.candidates import Array, Candidates


def repeated(c: Candidates) -> Array:
    """Fraction of a block's forward that its backward repeats: what the budget leaves out.

    torch recomputes the operators with the fewest FLOPs per byte first (a knapsack, torch 2.13,
    torch/_functorch/partitioners.py), so the repeated work grows slower than the freed bytes at first. A straight line
    from nothing (budget 1) to the whole forward (budget 0) is therefore an upper estimate, except that a tensor is
    freed whole where a part of it would do.
    """
    return 1.0 - c.activation_budget
