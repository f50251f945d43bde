"""Linear layers that an adapter may target in the blocks of known model families; a worker finds those of others."""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from shardtune.api_schemas.training.adapters import (
    ALL_LINEAR,
    Adapter,
    AdapterSchema,
    LastLayers,
    Lora,
    quantization_of,
)
from shardtune.api_schemas.training.models import ModelSpec

_ATTENTION = {"q_proj": "q", "k_proj": "k", "v_proj": "v", "o_proj": "o"}
_GATED = _ATTENTION | {"gate_proj": "gate", "up_proj": "up", "down_proj": "down"}
LINEAR_LAYERS: Mapping[str, Mapping[str, str]] = {
    "llama": {f"self_attn.{name}" if name in _ATTENTION else f"mlp.{name}": part for name, part in _GATED.items()},
    # transformers 5 stacks experts in one parameter, which is no linear layer.
    "mixtral": {f"self_attn.{name}": part for name, part in _ATTENTION.items()},
    "gpt2": {"attn.c_attn": "qkv", "attn.c_proj": "o", "mlp.c_fc": "up", "mlp.c_proj": "down"},
    "gpt_neox": {
        "attention.query_key_value": "qkv",
        "attention.dense": "o",
        "mlp.dense_h_to_4h": "up",
        "mlp.dense_4h_to_h": "down",
    },
    "mpt": {"attn.Wqkv": "qkv", "attn.out_proj": "o", "ffn.up_proj": "up", "ffn.down_proj": "down"},
}
"""Part of a block (such as `q` for the query projection) that a linear layer computes, by model family and by the path
of the layer within the block."""
_SAME = {"mistral": "llama", "qwen2": "llama", "qwen3": "llama", "qwen3_moe": "mixtral"}
_LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")


def linear_layers(model_type: str | None) -> Mapping[str, str] | None:
    """Return the part of a block that each linear layer computes, by the path of the layer within the block. None if
    the model family is not known."""
    return LINEAR_LAYERS.get(_SAME.get(str(model_type), str(model_type)))


def matches(path: str, target: str) -> bool:
    """Whether a target of an adapter names a module, either by the module's whole path or by the end of it."""
    return path == target or path.endswith(f".{target}")


def targeted_paths(paths: Sequence[str], lora: Lora) -> list[str]:
    """Return the paths of the linear layers to which an adapter is added.

    Raises:
        ValueError: a target matches none of them; the message has near names.
    """
    if lora.targets == ALL_LINEAR:
        if not paths:
            raise ValueError("adapter.targets ('all-linear') matches nothing: the model's blocks have no linear layer")
        return [*paths]
    for target in lora.targets:
        # A path that begins with the number of one block, or with the whole model's path.
        if not any(matches(path, target) or matches(target, path) for path in paths):
            raise ValueError(_no_match(target, paths))
    return [path for path in paths if any(matches(path, target) or matches(target, path) for target in lora.targets)]


def _no_match(target: str, paths: Iterable[str]) -> str:
    names = sorted({path.rpartition(".")[2] for path in paths})
    near = difflib.get_close_matches(target.rpartition(".")[2], names, n=3, cutoff=0.4)
    hint = f"did you mean {' or '.join(near)}?" if near else f"use {ALL_LINEAR!r}, or some of {', '.join(names[:20])}"
    return f"adapter.targets ({target!r:.100}) matches no linear layer in the model's repeated blocks; {hint}"


def check_model(adapter: Adapter, model: ModelSpec) -> None:
    """Reject an adapter that cannot be added to the model, as far as the model's configuration shows it.

    Raises:
        ValueError: the user's own code builds the model, a target matches no layer, or the model has too few layers.
    """
    if adapter is None:
        return
    if model.is_own:
        kind = "entry_point" if model.entry_point is not None else "script"
        raise ValueError(
            f"adapter ({adapter.describe()}) is put on named models, and model.{kind} builds your own; leave out adapter, "
            "and freeze weights in your code"
        )
    if model.is_unread:
        return
    _check_quantised(adapter, str(model.model_type))
    paths = linear_layers(model.model_type)
    if isinstance(adapter, Lora) and paths is not None:
        targeted_paths([*paths], adapter)
    if isinstance(adapter, LastLayers):
        _check_layers(adapter, model.trained_config)


_NOT_QUANTIZED = {
    "gpt2": "its layers are transformers' Conv1D, which has no 4-bit form here",
    **dict.fromkeys(
        ("mixtral", "qwen3_moe"), "its experts are stacked in parameters that bitsandbytes leaves in 16 bits"
    ),
}
"""Reasons why the blocks of some models are not quantised, by the model's `model_type`."""


def _check_quantised(adapter: AdapterSchema, model_type: str) -> None:
    quantization = quantization_of(adapter)
    if quantization is not None and model_type in _NOT_QUANTIZED:
        raise ValueError(
            f"adapter.quantization ({quantization!r}) cannot quantise {model_type}: {_NOT_QUANTIZED[model_type]}; leave out "
            "quantization, or use another model"
        )


def _check_layers(adapter: LastLayers, config: Mapping[str, Any]) -> None:
    layers = next((config[name] for name in _LAYERS if isinstance(config.get(name), int)), None)
    if layers is not None and adapter.layers > layers:
        raise ValueError(
            f"adapter.layers ({adapter.layers}) is more than the model's {layers}; use fewer, or leave out adapter to train all"
        )
