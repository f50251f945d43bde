"""Checks of precision and model of a workload in float8, as far as they are known before the model is built."""

from collections.abc import Mapping
from typing import Any

from shardtune.api_schemas.training.float8 import MULTIPLE, Float8Recipe
from shardtune.api_schemas.training.models import ModelSpec
from shardtune.api_schemas.training.workload import WorkloadRequest

_WIDTHS = ("hidden_size", "intermediate_size", "moe_intermediate_size", "n_inner")
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
_NO_LINEAR = ("gpt2", "openai-gpt", "imagegpt")
"""Values of `model_type` in transformers of models whose blocks have `Conv1D` modules in place of linear layers."""


def check_precision(workload: WorkloadRequest, *, device: str | None) -> None:
    """Reject a precision that cannot be combined with float8, if the precision is already known. `device` is the device
    type of the ranks; None if it is not known yet.

    Raises:
        ValueError: names the field, its value and the remedy.
    """
    precision = workload.precision
    if workload.float8 is None or precision is None:
        return
    stated = f"precision ({precision.name}) with float8 ({workload.float8!r})"
    if precision.autocast:
        raise ValueError(
            f"{stated}: torchao 0.18 follows autocast on GPUs only, so that CPU ranks would train something else; use bf16-mixed"
        )
    if precision.computes_in_float32 and device == "cuda":
        raise ValueError(f"{stated}: GPUs return float8 products in bfloat16; use bf16-mixed or bf16-true")


def check_model(model: ModelSpec, recipe: Float8Recipe | None) -> None:
    """Reject a model whose blocks have no linear layers that can be trained in float8, as far as the model's config
    shows.

    Raises:
        ValueError: names the field, its value and the remedy.
    """
    if recipe is None:
        return
    if model.script is not None:
        raise ValueError(
            f"float8 ({recipe!r}) needs a model that Shardtune trains: a script of your own (model.script) converts its "
            "layers itself; leave out float8"
        )
    if model.is_own:
        return
    if model.model_type in _NO_LINEAR:
        raise ValueError(
            f"float8 ({recipe!r}) converts linear layers, and blocks of model_type ({model.model_type!r}) have none (Conv1D); "
            "leave out float8"
        )
    config: Mapping[str, Any] = model.trained_config
    experts = next((name for name in _EXPERTS if isinstance(config.get(name), int) and config[name] > 1), None)
    if experts is not None:
        raise ValueError(
            f"float8 ({recipe!r}) converts linear layers, and the experts of this model ({experts} {config[experts]}) are none; "
            "leave out float8"
        )
    uneven = {name: config[name] for name in _WIDTHS if isinstance(config.get(name), int) and config[name] % MULTIPLE}
    if uneven:
        widths = ", ".join(f"{name} ({value})" for name, value in uneven.items())
        raise ValueError(
            f"float8 ({recipe!r}) needs linear layers whose widths are multiples of {MULTIPLE}, unlike {widths}; change the "
            "model, or leave out float8"
        )
