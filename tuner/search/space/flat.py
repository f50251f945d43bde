"""A configuration as a flat table of knob values and back."""

from typing import Any

from pydantic import ValidationError

from shardtune.api_schemas.search_space import KnobValue
from shardtune.api_schemas.strategies import (
    DdpConfig,
    Fsdp1Config,
    Fsdp2Config,
    Offload,
    Strategy,
    TrialConfig,
    ZeroConfig,
)

Flat = dict[str, KnobValue]

_SHARED = ("micro_batch", "activation_checkpointing", "compile")
_FSDP1_KNOBS = {"forward_prefetch": "fsdp1_forward_prefetch", "backward_prefetch": "fsdp1_backward_prefetch"}
"""FSDP1's prefetch is a switch and a word where FSDP2's is a depth, so they are knobs of other names."""


def flatten(config: TrialConfig) -> Flat:
    """Return every knob of the configuration by name, `backend` included."""
    table: Flat = {"backend": config.backend}
    for name in _SHARED:
        table[name] = getattr(config, name)
    strategy = config.strategy
    for name in type(strategy).model_fields:
        value = getattr(strategy, name)
        if name == "kind":
            continue
        if name in ("offload_optimizer", "offload_param"):
            table |= _flat_offload(name, value)
        elif isinstance(strategy, Fsdp1Config) and name in _FSDP1_KNOBS:
            table[_FSDP1_KNOBS[name]] = "none" if value is None else value
        else:
            table[name] = value
    return table


def _flat_offload(name: str, offload: Offload | None) -> Flat:
    state = offload or Offload()
    table: Flat = {name: offload.device if offload else "none", f"{name}_pin_memory": state.pin_memory}
    if name == "offload_optimizer":
        table[f"{name}_ratio"] = state.ratio
    return table


def unflatten(table: Flat) -> TrialConfig:
    """Build the configuration; knobs that are missing keep their defaults.

    Raises:
        ValueError: a value the backend does not take, with the field, the value and what is expected.
    """
    own = {name: value for name, value in table.items() if name not in (*_SHARED, "backend")}
    try:
        return TrialConfig.model_validate(
            {
                **{name: table[name] for name in _SHARED if name in table},
                "strategy": _strategy(str(table["backend"]), own),
            }
        )
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or str(table["backend"])
        raise ValueError(f"{field} ({first['input']!r}): {first['msg']}; change or drop that limit") from None


def _strategy(backend: str, own: dict[str, Any]) -> Strategy:
    if backend == "ddp":
        return DdpConfig(**own)
    if backend == "fsdp1":
        fields = {knob: name for name, knob in _FSDP1_KNOBS.items()}
        return Fsdp1Config(
            **{fields.get(name, name): None if value == "none" else value for name, value in own.items()}
        )
    if backend == "fsdp2":
        return Fsdp2Config(**own)
    for name in ("offload_optimizer", "offload_param"):
        device = own.pop(name, "none")
        pin = own.pop(f"{name}_pin_memory", True)
        ratio = own.pop(f"{name}_ratio", 1.0)
        own[name] = None if device == "none" else Offload(device=device, pin_memory=pin, ratio=ratio)
    return ZeroConfig(**own)
