"""Matrix products of a block whose results selective checkpointing keeps, by what a candidate says
(`workers.blocks.checkpointing`)."""

from typing import NamedTuple

import numpy as np

from shardtune.tuner.prediction.candidates import ATTENTION_ALONE, SECOND_PRODUCTS, Array, Candidates
from shardtune.tuner.prediction.model_shape import ModelShape


class _Product(NamedTuple):
    """Matrix product of a block, such as that of a linear layer."""

    inputs: int
    outputs: int
    is_sum: bool = False
    """Whether ranks that split the block each compute a part of a sum, for all positions."""
    repeats: int = 1
    """Number of times that each token takes part: the number of its experts, for products of experts."""

    @property
    def width(self) -> int:
        """Elements of the result per token."""
        return self.outputs * self.repeats

    @property
    def flops(self) -> float:
        """FLOPs per token, without the factor 2."""
        return float(self.inputs * self.width)


def kept_width(shape: ModelShape, c: Candidates, of_all: Array) -> Array:
    """Elements per token of the results of matrix products that a block keeps under selective checkpointing. `of_all`:
    number of elements where it keeps all products."""
    if not np.any(c.selective_keeps):
        # Most spaces have no other choice, and an enumeration comes by here thousands of times.
        return of_all
    second = np.where(c.mlp_slices > 1, _second_width(shape, c, True), _second_width(shape, c, False))
    if not shape.knows_products:
        # The order of an unknown architecture's products is not known, either.
        second = of_all
    chosen = np.where(c.selective_keeps == SECOND_PRODUCTS, second, of_all)
    return np.where(c.selective_keeps == ATTENTION_ALONE, 0.0, chosen)


def repeated(shape: ModelShape, c: Candidates) -> Array:
    """Fraction of the FLOPs of a block's matrix products that backward repeats under selective checkpointing. A product
    in a slice of an MLP is not among them: the slice itself repeats it."""
    if not np.any(c.selective_keeps):
        return np.zeros_like(c.selective_keeps)
    second = np.where(c.mlp_slices > 1, _second_repeated(shape, True), _second_repeated(shape, False))
    chosen = np.where(c.selective_keeps == SECOND_PRODUCTS, second, 0.0)
    return np.where(c.selective_keeps == ATTENTION_ALONE, 1.0, chosen)


def _second_width(shape: ModelShape, c: Candidates, is_sliced: bool) -> Array:
    kept = _in_order(shape, is_sliced)[::2]
    sums = sum(product.is_sum for product in kept)
    return sum(product.width for product in kept) + sums * (c.tensor - 1.0) * shape.hidden


def _second_repeated(shape: ModelShape, is_sliced: bool) -> float:
    everything = sum(product.flops for product in _in_order(shape, False))
    return sum(product.flops for product in _in_order(shape, is_sliced)[1::2]) / everything


def _in_order(shape: ModelShape, is_sliced: bool) -> list[_Product]:
    """Products that are counted, in the order of a block's forward. Those of an MLP in slices are not; nor are the two
    of eager attention, which do not change which of the others are kept."""
    is_gated, has_experts = shape.mlp == "gated", shape.experts > 1
    parts = ["q", "k", "v", "o"] if is_gated else ["qkv", "o"]
    if not is_sliced and not has_experts:
        parts += ["gate", "up", "down"] if is_gated else ["up", "down"]
    adapted, rank = (frozenset[str](), 0) if shape.adapter is None else (shape.adapter.parts, shape.adapter.rank)
    products = []
    for part in parts:
        inputs, outputs = shape.part_widths[part]
        products.append(_Product(inputs, outputs, part in ("o", "down")))
        if part in adapted:
            products += [_Product(inputs, rank), _Product(rank, outputs)]
    return [*products, *_of_experts(shape)] if has_experts else products


def _of_experts(shape: ModelShape) -> tuple[_Product, ...]:
    """Products of a router and of its experts, whose first layers transformers computes in one product."""
    first = shape.ffn * (2 if shape.mlp == "gated" else 1)
    active = shape.experts_per_token
    return (
        _Product(shape.hidden, shape.experts),
        _Product(shape.hidden, first, repeats=active),
        _Product(shape.ffn, shape.hidden, repeats=active),
    )
