"""Memory traffic of LoRA beside the linear layers that it adapts: PEFT scales and adds a whole output per layer, and each
product unpacks its 4-bit weight."""

from typing import NamedTuple

import numpy as np

from shardtune.api_schemas.training import quantization
from shardtune.tuner.prediction.adapters import magnitudes
from shardtune.tuner.prediction.candidates import Array
from shardtune.tuner.prediction.model_shape import ModelShape


class AdapterTraffic(NamedTuple):
    """Bytes of memory traffic per token that the LoRA layers of one block add to the frozen model's, in forward and in
    backward."""

    forward: Array
    backward: Array


def adapter_traffic(shape: ModelShape, compiled: Array, size: int) -> AdapterTraffic:
    """Bytes of memory traffic per token that adapters add to one block, with elements of `size` bytes.

    In forward an adapter reads the layer's input, writes its own output, scales it and adds it to the frozen layer's
    output (`peft.tuners.lora.layer`). Compiled blocks scale and add in one kernel. Backward scales the output's
    gradient and reads it for both matrices, reads and writes the input's gradient, and adds it to the frozen layer's.
    """
    if shape.adapter is None:
        return AdapterTraffic(np.zeros(1), np.zeros(1))
    inputs = float(size * sum(inputs for inputs, _ in shape.adapter.matrices))
    outputs = float(size * sum(outputs for _, outputs in shape.adapter.matrices))
    # Beside 4-bit weights PEFT copies the frozen layer's output first (`peft.tuners.lora.bnb`).
    copied = np.where(compiled > 0, 0.0, 2.0) * outputs * (shape.packed_parameters > 0)
    scaled = magnitudes.scaling_bytes(shape.adapter, size)
    forward = inputs + np.where(compiled > 0, 4.0, 6.0) * outputs + copied + np.where(compiled > 0, 0.0, scaled)
    return AdapterTraffic(forward, np.full_like(forward, 5.0 * inputs + 4.0 * outputs + scaled))


def unpacking_bytes(shape: ModelShape, size: int) -> float:
    """Bytes that one pass over all blocks moves to unpack weights in 4 bits into elements of `size` bytes; 0 where no
    weights are in 4 bits. The matrix products that read the unpacked weights are counted elsewhere."""
    if shape.adapter is None:
        return 0.0
    moved = quantization.PACKED_BYTES + shape.adapter.scale_bytes + size
    if shape.adapter.has_packed_scales:
        # Scales are written, read for the addition of their mean, written again, and read for the weights.
        moved += 4.0 * quantization.scale_bytes(False)
    return shape.layers * shape.packed_parameters * moved


def unpacking_kernels(shape: ModelShape) -> float:
    """Number of kernels that the 4-bit layers of a block launch in forward besides their matrix products: to unpack
    weights and scales, and to copy the output of each adapted layer."""
    if shape.adapter is None or not shape.adapter.quantised:
        return 0.0
    of_layer = 3.0 if shape.adapter.has_packed_scales else 1.0
    return of_layer * len(shape.adapter.quantised) + len(shape.adapter.matrices)
