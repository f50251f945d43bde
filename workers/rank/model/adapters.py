"""Adapters on a model: which parameters are trained, and PEFT's layers beside the frozen ones.

All parameters stay on the meta device. Backends give frozen ones the dtype of the computation, since no optimizer
updates them.
"""

import importlib
import importlib.util
from typing import Any

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from shardtune.api_schemas.training import adapter_targets
from shardtune.api_schemas.training.adapters import ADAPTER_KINDS, DORA, AdapterSchema, LastLayers, Lora
from shardtune.api_schemas.training.quantization import QLORA
from shardtune.workers.blocks.prepare import repeated_blocks
from shardtune.workers.rank.model.build import replace_parameters, without_values
from shardtune.workers.rank.model.quantization import layers as quantised

_PEFT = "peft"


def trainable_kinds() -> list[str]:
    """Kinds of adapters that this installation can train: LoRA and DoRA only if PEFT is installed, and `qlora` only if
    bitsandbytes is installed, too."""
    has_peft = importlib.util.find_spec(_PEFT) is not None
    kinds: list[str] = [kind for kind in ADAPTER_KINDS if has_peft or kind != "lora"]
    if not has_peft:
        return kinds
    return [*kinds, DORA, *([QLORA] if quantised.is_installed() else [])]


def install(model: nn.Module, adapter: AdapterSchema | None, dtype: torch.dtype = torch.float32) -> None:
    """Freeze all parameters of a model except its adapter, in place. In a model without an adapter all parameters stay
    trained.

    `dtype`: dtype in which quantised layers multiply.

    Raises:
        SetupError: weights are to be quantised, and bitsandbytes is missing.
        ValueError: a target of the adapter matches no linear layer, or the adapter trains more last layers than the
            model has.
    """
    if isinstance(adapter, Lora):
        if adapter.quantization is not None:
            quantised.convert([block for _, block in repeated_blocks(model)], adapter, dtype)
            # PEFT's word for a model whose layers are bitsandbytes': without it no layer would get an adapter.
            setattr(model, "is_loaded_in_4bit", True)  # noqa: B010 -- nn.Module's attributes are untyped
        _add_lora(model, adapter)
    elif isinstance(adapter, LastLayers):
        _freeze_all_but(model, adapter)


def drop_magnitudes(model: nn.Module) -> None:
    """Change DoRA's layers in place so that they compute like plain LoRA layers, without DoRA's magnitude vectors."""
    for module in model.modules():
        if (variants := getattr(module, "lora_variant", None)) is not None:
            variants.clear()


def cast_frozen(model: nn.Module, dtype: torch.dtype) -> None:
    """Change the dtype of a model's frozen parameters on the meta device, except for weights that are later packed in 4
    bits."""

    def make(_name: str, old: nn.Parameter) -> nn.Parameter:
        if old.requires_grad or old.dtype == dtype or quantised.is_unpacked(old):
            return old
        return nn.Parameter(old.to(dtype), requires_grad=False)

    replace_parameters(model, make)


def trained_leaves(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """Modules without children whose weight is trained, with their paths: the matrices of LoRA adapters.

    FSDP1 wraps each of these modules as a unit of its own, as PEFT's wrap policy does, because a flat parameter has
    only one dtype and one `requires_grad`.
    """
    return [
        (name, leaf)
        for name, leaf in module.named_modules()
        if not list(leaf.children()) and any(parameter.requires_grad for parameter in leaf.parameters(recurse=False))
    ]


def _add_lora(model: nn.Module, lora: Lora) -> None:
    # On first use: it takes seconds, and few workloads have an adapter. The fork server has imported it before it forks.
    peft: Any = importlib.import_module(_PEFT)
    layers = {
        f"{block_name}.{name}": module
        for block_name, block in repeated_blocks(model)
        for name, module in block.named_modules()
        if isinstance(module, nn.Linear | Conv1D)
    }
    paths = adapter_targets.targeted_paths([*layers], lora)
    config = peft.LoraConfig(
        r=lora.rank,
        # A number of any kind; PEFT only divides it.
        lora_alpha=lora.alpha,
        target_modules=paths,
        lora_dropout=0.0,
        use_rslora=lora.rslora,
        use_dora=lora.dora,
        fan_in_fan_out=any(isinstance(layers[path], Conv1D) for path in paths),
        # Values come from the seed and the parameter's name, as all others do: B is not zero, and so A has a gradient.
        init_lora_weights=False,
    )
    with without_values():
        peft.inject_adapter_in_model(config, model)
    model.train()


def _freeze_all_but(model: nn.Module, adapter: LastLayers) -> None:
    blocks = [block for _, block in repeated_blocks(model)]
    if adapter.layers > len(blocks):
        raise ValueError(
            f"adapter.layers ({adapter.layers}) is more than the model's {len(blocks)} repeated blocks; use fewer"
        )
    model.requires_grad_(False)
    for block in blocks[-adapter.layers :]:
        block.requires_grad_(True)
