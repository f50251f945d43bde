"""Cost of DoRA beyond LoRA's: the lengths of each adapted weight's rows, computed anew in every forward pass.

Counted from `DoraLinearLayer` of PEFT 0.21 for a layer of n inputs and m outputs: an identity of n × n goes through LoRA's
two matrices, which makes their product a matrix of m × n; it is scaled, added to the frozen weight, and each row's
length is taken. The output of the frozen layer and that of the adapter are then scaled by the trained length over
this one.
"""

import numpy as np

from shardtune.tuner.prediction.adapters.layers import AdaptedLayers
from shardtune.tuner.prediction.candidates import Array

_SCALED_OUTPUTS = 6.0
"""Memory accesses for each output element of a layer that DoRA adds to LoRA's forward: the outputs of the frozen layer
and of the adapter are each scaled by a vector and written; then their sum is written."""


def kept_bytes(adapter: AdaptedLayers, size: int) -> float:
    """Activation bytes per token that DoRA keeps in one block: the outputs of the frozen layers and of their LoRA
    adapters, which the gradient of the trained magnitudes needs."""
    return 2.0 * size * _outputs(adapter)


def largest_temporary(adapter: AdaptedLayers | None, size: int, of_weights: int, keeps_products: Array) -> Array:
    """Bytes of temporaries while DoRA computes the row lengths of the largest adapted weight: an identity matrix, and
    three copies of the product of LoRA's matrices (before scaling, after it, and added to the weight).

    Args:
        adapter: adapter on the block; if None, the result is 0.
        size: bytes of an element of the computation.
        of_weights: bytes of an element of the weights, which differ under autocast.
        keeps_products: candidates that keep the product until backward, where `kept_products` counts it.
    """
    if adapter is None:
        return keeps_products * 0.0
    copies = np.where(keeps_products * (of_weights == size) > 0, 2.0, 3.0)
    layers = [inputs * (size * inputs + copies * of_weights * outputs) for inputs, outputs in adapter.normed]
    return np.max([keeps_products * 0.0, *layers], axis=0)  # type: ignore[no-any-return]


def kept_products(adapter: AdaptedLayers | None, size: int) -> float:
    """Bytes of the matrix products that DoRA adds to a block and that selective checkpointing keeps: an identity matrix
    times LoRA's first matrix, and this product times LoRA's second matrix. They do not depend on the number of
    tokens."""
    if adapter is None:
        return 0.0
    return size * sum(inputs * (adapter.rank + float(outputs)) for inputs, outputs in adapter.normed)


def length_flops(adapter: AdaptedLayers) -> float:
    """FLOPs for the row lengths that DoRA computes in one forward pass of a block, by sending an identity matrix
    through LoRA's two matrices; they do not depend on the number of tokens."""
    return 2.0 * adapter.rank * sum(inputs * (inputs + outputs) for inputs, outputs in adapter.normed)


def length_bytes(adapter: AdaptedLayers, size: int) -> float:
    """Bytes of memory traffic for the row lengths that DoRA computes in one forward pass of a block, whatever the
    number of tokens. The identity matrix is cleared and read; the product of LoRA's matrices is written, read and
    written scaled, read and added to the weight; and the sum is read."""
    return size * sum(inputs * (2.0 * inputs + 7.0 * outputs) for inputs, outputs in adapter.normed)


def scaling_bytes(adapter: AdaptedLayers, size: int) -> float:
    """Bytes of memory traffic per token with which a block's forward scales the outputs of each layer that DoRA adapts:
    the frozen layer's and the adapter's."""
    return _SCALED_OUTPUTS * size * _outputs(adapter)


def _outputs(adapter: AdaptedLayers) -> float:
    """Sum of the output widths of the layers for which DoRA trains magnitudes."""
    return float(sum(outputs for _, outputs in adapter.normed))
