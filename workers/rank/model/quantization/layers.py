"""Linear layers with 4-bit weights by bitsandbytes, in place of a model's own.

Weights stay on the meta device, unquantised, until a backend places them: one layer at a time is made in the dtype of the
computation and packed, so that a rank never holds a whole model in 16 bits.
"""

import functools
import importlib
import importlib.util
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from shardtune.api_schemas.training.adapters import Lora
from shardtune.api_schemas.training.quantization import QUANTIZATION_PACKAGE
from shardtune.workers.rank.classify import SetupError

_MARK = "packs_frozen_weights"
"""Name of the class attribute that marks a layer with 4-bit weights."""
Fill = Callable[[torch.Tensor], None]
"""Function that writes the initial values of one weight into a tensor that has the weight's shape."""


def is_installed() -> bool:
    """Whether this installation can quantise weights."""
    return importlib.util.find_spec(QUANTIZATION_PACKAGE) is not None


def convert(blocks: Sequence[nn.Module], lora: Lora, dtype: torch.dtype) -> None:
    """Replace the linear layers of a model's repeated blocks on the meta device by 4-bit layers. Biases, norms and the
    names of parameters stay.

    `dtype`: dtype of the computation.

    Raises:
        SetupError: bitsandbytes is missing.
        ValueError: the blocks have no linear layer, or weights that bitsandbytes would leave as they are.
    """
    if not is_installed():
        raise SetupError(
            f"adapter.quantization ({lora.quantization!r}) needs {QUANTIZATION_PACKAGE}, which this worker lacks; install "
            "shardtune[8bit] there"
        )
    _require_linear_layers(blocks, lora)
    for block in blocks:
        for name, layer in [*block.named_modules()]:
            if isinstance(layer, nn.Linear):
                block.set_submodule(name, _quantised_layer(layer, lora, dtype))


def quantised_layers(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield the 4-bit layers of a model with their names."""
    for name, module in model.named_modules():
        if is_quantised(module):
            yield name, module


def is_quantised(module: nn.Module) -> bool:
    """Whether a module is a linear layer with 4-bit weights."""
    # By a mark of the class, so that trials without 4-bit weights need not import bitsandbytes.
    return getattr(module, _MARK, False) is True


def is_unpacked(parameter: nn.Parameter) -> bool:
    """Whether a parameter is the weight of a 4-bit layer that has no values yet, so that they must still be made and
    packed."""
    return hasattr(parameter, "bnb_quantized") and not parameter.bnb_quantized


def packed(parameter: Any, fill: Fill, device: torch.device) -> nn.Parameter:
    """Make the values of a 4-bit layer's weight on a device, and return them packed; the layer keeps their scales."""
    layer = parameter.module
    value = torch.empty(parameter.shape, dtype=layer.compute_dtype, device=device)
    fill(value)
    weight: nn.Parameter = type(parameter)(
        value,
        requires_grad=False,
        compress_statistics=parameter.compress_statistics,
        quant_type=parameter.quant_type,
        quant_storage=layer.quant_storage,
        module=layer,
    )
    # Dropped before packing: a second reference would keep the whole weight alive.
    del value
    return weight.to(device)  # type: ignore[return-value]


def declare_packed(model: nn.Module, storage: torch.dtype) -> dict[str, Any]:
    """Give the 4-bit layers of a model on the meta device parameters as large as the packed weights, so that a backend
    can shard them before they have values. Their elements have the given dtype, each holding several packed values.
    Returns the weights that must be packed later, by parameter name.

    If all parameters of a unit have one dtype, FSDP can gather them at once, as with transformers'
    `bnb_4bit_quant_storage`.

    Raises:
        ValueError: the packed size of a weight is not a whole number of elements of that dtype.
    """
    unpacked = {}
    for name, layer in quantised_layers(model):
        weight, bytes_per_word = layer.weight, storage.itemsize
        words, rest = divmod(weight.numel(), 2 * bytes_per_word)
        if rest:
            raise ValueError(
                f"adapter.quantization packs weights in words of {storage}, and {name} has {weight.numel()} weights; use ddp, "
                "or leave out quantization"
            )
        unpacked[f"{name}.weight"] = weight
        layer.quant_storage = storage
        # Not through `nn.Module.__setattr__`: bitsandbytes finds its way back from a plain parameter in each forward.
        layer._parameters["weight"] = nn.Parameter(
            torch.empty(words, 1, dtype=storage, device="meta"), requires_grad=False
        )
    return unpacked


@functools.cache
def _layer_class() -> Any:
    """Class of 4-bit layers whose scales are left out of checkpoints, since checkpoints leave out frozen weights, too."""
    # On some CPUs it asks for a package with faster kernels, once for each rank.
    logging.getLogger(QUANTIZATION_PACKAGE).setLevel(logging.ERROR)
    base = importlib.import_module(QUANTIZATION_PACKAGE).nn.Linear4bit
    members = {_MARK: True, "_save_to_state_dict": nn.Module._save_to_state_dict}
    return type("FrozenLinear4bit", (base,), members)


def _quantised_layer(layer: nn.Linear, lora: Lora, dtype: torch.dtype) -> nn.Module:
    converted: nn.Module = _layer_class()(
        layer.in_features,
        layer.out_features,
        bias=layer.bias is not None,
        compute_dtype=dtype,
        compress_statistics=lora.double_quantization,
        quant_type=lora.quantization,
        device="meta",
    )
    converted._parameters["bias"] = layer.bias
    return converted.train(layer.training)


def _require_linear_layers(blocks: Sequence[nn.Module], lora: Lora) -> None:
    modules = [module for block in blocks for module in block.modules()]
    stated = f"adapter.quantization ({lora.quantization!r})"
    stacked = [parameter for block in blocks for parameter in block.parameters() if parameter.ndim > 2]
    if stacked or any(isinstance(module, Conv1D) for module in modules):
        kind = "experts in one parameter" if stacked else "transformers' Conv1D layers"
        raise ValueError(
            f"{stated} would leave {kind} in 16 bits, which is most of this model; leave out quantization, or use another model"
        )
    if not any(isinstance(module, nn.Linear) for module in modules):
        raise ValueError(
            f"{stated} quantises linear layers, and the model's repeated blocks have none; leave out quantization"
        )
