"""Float8 training of a model's linear layers by torchao: what it computes, and which workloads and models it can train."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from shardtune.api_schemas.training.models import ModelSpec
    from shardtune.api_schemas.training.workload import WorkloadRequest

Float8Recipe = Literal["tensorwise", "rowwise"]
"""Scaling of float8 operands, by torchao's names: one scale for each tensor, or for each row and column of it."""
FLOAT8_SINCE = 2
"""First protocol version whose workers train in float8."""
FLOAT8_PACKAGE = "torchao"
"""Python package with which ranks train in float8."""
CONSIDERED: Mapping[str, Float8Recipe] = {"fp8": "tensorwise", "fp8-rowwise": "rowwise"}
"""Scalings by the names with which a study considers them."""
MULTIPLE = 16
"""Number of which each dimension of a float8 matrix product must be a multiple (cuBLAS, `torch._scaled_mm`)."""
_WIDTHS = ("hidden_size", "intermediate_size", "moe_intermediate_size", "n_inner")
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
_NO_LINEAR = ("gpt2", "gpt_bigcode", "openai-gpt", "imagegpt")
"""Model types of transformers whose blocks have `Conv1D` modules in place of linear layers."""


def title(recipe: Float8Recipe) -> str:
    """Name of a float8 recipe for people."""
    return f"float8 ({recipe})"


def check_workload(workload: "WorkloadRequest") -> None:
    """Reject a workload that float8 cannot train, or that nobody has compared over backends.

    Raises:
        ValueError: names the field, its value and the remedy.
    """
    if workload.float8 is None:
        return
    stated = f"float8 ({workload.float8!r})"
    if workload.sequence_length % MULTIPLE:
        lower = workload.sequence_length // MULTIPLE * MULTIPLE
        nearest = f"{lower} or {lower + MULTIPLE}" if lower else f"{MULTIPLE}"
        raise ValueError(
            f"sequence_length ({workload.sequence_length}) with {stated}: float8 products need multiples of {MULTIPLE}; "
            f"try {nearest}, or leave out float8"
        )
    if workload.adapter is not None:
        raise ValueError(
            f"adapter ({workload.adapter.describe()}) beside {stated} was not compared over backends; leave out one of them"
        )
    if workload.data is not None:
        raise ValueError(
            f"data ({workload.data.describe()}) beside {stated} would scale real tokens by padding; leave out one of them"
        )


def check_precision(workload: "WorkloadRequest", *, device: str | None) -> None:
    """Reject a precision on which float8 cannot stand, as far as it is known. `device`: type of the ranks' device;
    None where that is not known yet.

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
    if precision.compute_dtype == "float32" and device == "cuda":
        raise ValueError(f"{stated}: GPUs return float8 products in bfloat16; use bf16-mixed or bf16-true")


def check_model(model: "ModelSpec", recipe: Float8Recipe | None) -> None:
    """Reject a model whose blocks have no linear layers that float8 can train, as far as its config shows.

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
