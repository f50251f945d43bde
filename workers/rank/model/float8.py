"""Conversion of a model's linear layers to float8 training by torchao."""

import importlib
import importlib.util
import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, get_args

import torch
from torch import nn

from shardtune.api_schemas.strategies.fields import float8_gather
from shardtune.api_schemas.training.float8 import FLOAT8_PACKAGE, MULTIPLE, Float8Recipe
from shardtune.workers.rank.classify import NumericsError, SetupError

_LOWEST_CAPABILITY = (8, 9)
"""Lowest CUDA compute capability with float8 tensor cores."""


def installed_recipes() -> list[Float8Recipe]:
    """Kinds of float8 scaling with which this installation can train, whatever its GPUs support."""
    return list(get_args(Float8Recipe)) if importlib.util.find_spec(FLOAT8_PACKAGE) is not None else []


def convert(
    blocks: Sequence[nn.Module], recipe: Float8Recipe | None, device: torch.device, gather_shards: int = 0
) -> int:
    """Make the linear layers of a model's repeated blocks multiply in float8, in place. Parameters, their names and
    dtypes stay. On CPU ranks this is emulated: operands are rounded to float8, and multiplied in the precision's dtype.
    `gather_shards`: number of ranks over which FSDP2 shards weights that it gathers in float8; 0 if it does not.
    Returns the number of linear layers.

    Raises:
        SetupError: torchao is missing, or the GPU does not support float8.
        ValueError: the blocks have no linear layer, or one whose widths float8 cannot multiply, or that
            cannot be gathered in float8.
    """
    if recipe is None:
        return 0
    _require_float8(recipe, device)
    layers = _require_widths(blocks, recipe)
    if gather_shards:
        _require_even_shards(blocks, gather_shards)
        if device.type == "cpu":
            _require_other_parameters(blocks)
    float8 = _library()
    config = float8.Float8LinearConfig.from_recipe_name(recipe)
    if device.type == "cpu":
        # `from_recipe_name` knows no emulation.
        config = replace(config, emulate=True)
    if gather_shards:
        config = replace(config, enable_fsdp_float8_all_gather=True)
    for block in blocks:
        float8.convert_to_float8_training(block, config=config)
    return layers


def require_converted(model: nn.Module, recipe: Float8Recipe | None, layers: int) -> None:
    """Check that a wrapped model still has as many float8 layers as its blocks had linear layers. Losses would not show
    a missing one: with and without float8 they are too close. torchao does not convert a block that is itself a linear
    layer.

    Raises:
        NumericsError: layers would train without float8.
    """
    if recipe is None:
        return
    kind = _library().float8_linear.Float8Linear
    converted = sum(isinstance(module, kind) for module in model.modules())
    if converted != layers:
        raise NumericsError(
            f"workload.float8 ({recipe!r}) converts the {layers} linear layers of the repeated blocks, and {converted} of them "
            "are converted; leave out float8, or use another backend"
        )


def _library() -> Any:
    # torchao names kernels of GPUs that it cannot load, once for each rank.
    logging.getLogger(FLOAT8_PACKAGE).setLevel(logging.ERROR)
    return importlib.import_module(f"{FLOAT8_PACKAGE}.float8")


def _require_float8(recipe: Float8Recipe, device: torch.device) -> None:
    if not installed_recipes():
        raise SetupError(
            f"workload.float8 ({recipe!r}) needs {FLOAT8_PACKAGE}, which this worker lacks; install shardtune[fp8] there"
        )
    if device.type == "cuda" and torch.version.hip is None:
        capability = torch.cuda.get_device_capability(device)
        if capability < _LOWEST_CAPABILITY:
            lowest = ".".join(map(str, _LOWEST_CAPABILITY))
            raise SetupError(
                f"workload.float8 ({recipe!r}) needs compute capability {lowest}, and {torch.cuda.get_device_name(device)} has "
                f"{'.'.join(map(str, capability))}; leave out float8"
            )


def _require_widths(blocks: Sequence[nn.Module], recipe: Float8Recipe) -> int:
    """Check that float8 can multiply the linear layers of the blocks, and return their number. Without this check torch
    would fail at the first product on a GPU, and not at all on a CPU."""
    layers = [
        (f"{index}.{name}", module)
        for index, block in enumerate(blocks)
        for name, module in block.named_modules()
        if isinstance(module, nn.Linear)
    ]
    if not layers:
        raise ValueError(
            f"workload.float8 ({recipe!r}) converts linear layers, and the model's repeated blocks have none; leave out float8"
        )
    for name, layer in layers:
        if layer.in_features % MULTIPLE or layer.out_features % MULTIPLE:
            raise ValueError(
                f"workload.float8 ({recipe!r}) needs linear layers whose widths are multiples of {MULTIPLE}, and {name} of the "
                f"blocks has {layer.in_features} and {layer.out_features}; change the model, or leave out float8"
            )
    return len(layers)


def _require_even_shards(blocks: Sequence[nn.Module], shards: int) -> None:
    for index, block in enumerate(blocks):
        for name, module in block.named_modules():
            if isinstance(module, nn.Linear) and module.out_features % shards:
                # Ranks with fewer rows would send fewer bytes than others wait for.
                raise float8_gather.uneven(f"{index}.{name}", module.out_features, shards)


def _require_other_parameters(blocks: Sequence[nn.Module]) -> None:
    for index, block in enumerate(blocks):
        linear = {id(module.weight) for module in block.modules() if isinstance(module, nn.Linear)}
        if all(id(parameter) in linear for parameter in block.parameters()):
            # FSDP2 gathers a unit of several dtypes as bytes, and a unit of one dtype in that dtype (torch 2.13).
            raise ValueError(
                f"{float8_gather.NAME} (true) on CPU ranks needs blocks with a parameter beside their linear weights, and block "
                f"{index} has none: gloo sends no float8 numbers (torch 2.13); set {float8_gather.NAME} to false"
            )
