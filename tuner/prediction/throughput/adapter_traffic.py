"""Memory traffic of LoRA beside the linear layers that it adapts: PEFT scales and adds a whole output per layer."""

from typing import NamedTuple

import numpy as np

from shardtune.tuner.prediction.candidates import Array
from shardtune.tuner.prediction.model_shape import ModelShape


class AdapterTraffic(NamedTuple):
    """Bytes per token of one block that LoRA's layers move beyond those of the frozen model."""

    forward: Array
    backward: Array


def adapter_traffic(shape: ModelShape, compiled: Array, size: int) -> AdapterTraffic:
    """Bytes per token of one block that adapters move, with elements of `size` bytes.

    Forward reads a layer's input and writes an output, scales it and adds it to the layer's own (`peft.tuners.lora.layer`).
    Compiled blocks scale and add in one kernel. Backward scales the output's gradient and reads it for both matrices,
    reads and writes the input's gradient, and adds it to the frozen layer's.
    """
    if shape.adapter is None:
        return AdapterTraffic(np.zeros(1), np.zeros(1))
    inputs = float(size * sum(inputs for inputs, _ in shape.adapter.matrices))
    outputs = float(size * sum(outputs for _, outputs in shape.adapter.matrices))
    forward = inputs + np.where(compiled > 0, 4.0, 6.0) * outputs
    return AdapterTraffic(forward, np.full_like(forward, 5.0 * inputs + 4.0 * outputs))
