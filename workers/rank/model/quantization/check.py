"""Checks that a trial's base weights are in 4 bits, and that they stay as they are: losses of 16-bit weights are so close
that no trajectory shows the difference."""

import hashlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from shardtune.api_schemas.training.adapters import AdapterSchema, quantization_of
from shardtune.api_schemas.training.quantization import Quantization
from shardtune.workers.rank.classify import NumericsError
from shardtune.workers.rank.model.quantization.layers import is_quantised, quantised_layers

_WORD = 8
"""Number of bytes that are added up at a time."""


def require_packed(blocks: Sequence[nn.Module], adapter: AdapterSchema | None) -> None:
    """Check that every frozen linear layer of a wrapped model's blocks has 4-bit weights.

    Raises:
        NumericsError: the frozen weights of a layer are not quantised.
    """
    quantization = quantization_of(adapter)
    if quantization is None:
        return
    # DDP parametrises trained weights, which are then parameters of a child.
    layers = [
        (f"{index}.{name}", module)
        for index, block in enumerate(blocks)
        for name, module in block.named_modules()
        if isinstance(module, nn.Linear) and not any(p.requires_grad for p in module.parameters())
    ]
    unpacked = [name for name, layer in layers if not (is_quantised(layer) and _is_packed(layer))]
    if unpacked or not layers:
        named = f", among others {unpacked[0]} of the blocks" if unpacked else ""
        raise NumericsError(
            f"adapter.quantization ({quantization!r}) packs the {len(layers)} frozen linear layers of the repeated blocks, and "
            f"{len(layers) - len(unpacked)} of them are packed{named}; leave out quantization, or use another backend"
        )


class FrozenWeights:
    """Checksums of the packed 4-bit weights and scales on one rank, taken before training and compared after it."""

    def __init__(self, model: nn.Module, adapter: AdapterSchema | None) -> None:
        self._quantization: Quantization | None = quantization_of(adapter)
        self._layers = [] if self._quantization is None else [*quantised_layers(model)]
        self._before = self._sums()

    def require_unmoved(self) -> None:
        """Check that no packed weight and no scale has changed.

        Raises:
            NumericsError: names the first layer whose weights or scales changed.
        """
        for (name, _), before, after in zip(self._layers, self._before, self._sums(), strict=True):
            if before != after:
                raise NumericsError(
                    f"adapter.quantization ({self._quantization!r}) keeps base weights frozen, and those of {name} changed in "
                    "training; use another backend"
                )

    def _sums(self) -> list[tuple[Any, ...]]:
        """Sums of the bytes of every layer, and a hash of the first layer. Unlike a sum, the hash also changes if two
        values swap places."""
        sums: list[tuple[Any, ...]] = [
            tuple(_sum_of(tensor) for tensor in (_local(layer.weight), *_scales(layer))) for _, layer in self._layers
        ]
        if sums:
            first = _bytes_of(_local(self._layers[0][1].weight)).cpu().numpy()
            sums[0] = (*sums[0], hashlib.sha256(first.tobytes()).hexdigest())
        return sums


def _is_packed(layer: Any) -> bool:
    weight, state = layer.weight, layer.quant_state
    elements = layer.in_features * layer.out_features
    return state is not None and weight.numel() * weight.dtype.itemsize == elements // 2


def _scales(layer: Any) -> list[torch.Tensor]:
    state = layer.quant_state
    return [state.absmax] if state.state2 is None else [state.absmax, state.state2.absmax, state.offset]


def _local(parameter: torch.Tensor) -> torch.Tensor:
    """Part of a parameter that this rank holds."""
    data = parameter.detach()
    return data.to_local() if isinstance(data, DTensor) else data


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def _sum_of(tensor: torch.Tensor) -> int:
    """Sum of a tensor's bytes as 64-bit words, modulo 2^64. If the tensor's offset in memory forbids a view as 64-bit
    words, it is copied first."""
    content = _bytes_of(tensor)
    whole = content.numel() // _WORD * _WORD
    # A part that begins at an odd word of a larger tensor cannot be viewed in wider ones.
    if content.storage_offset() % _WORD:
        content = content.clone()
    words = content[:whole].view(torch.int64).sum()
    return int(words) + int(content[whole:].sum(dtype=torch.int64))
