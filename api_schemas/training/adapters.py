"""Schemas of adapters: the part of a model that is trained while all other weights stay frozen.

An adapter belongs to the workload, since it decides what is trained. It is never searched.
"""

import json
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Discriminator, Field, Tag, ValidationInfo, field_validator, model_validator

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.names import ModulePath
from shardtune.api_schemas.protocol import Since
from shardtune.api_schemas.training.quantization import (
    QLORA,
    QUANTIZATION_SINCE,
    Quantization,
    check_foreign_names,
)

ALL_LINEAR: Literal["all-linear"] = "all-linear"
"""Value of an adapter's `targets` that stands for every linear layer in the model's repeated blocks. PEFT uses the same
word."""
_PEFT_NAMES = {
    "r": "rank",
    "lora_alpha": "alpha",
    "lora_dropout": "dropout",
    "target_modules": "targets",
    "use_rslora": "rslora",
    "use_dora": "dora",
}
DORA: Literal["dora"] = "dora"
"""Name of DoRA (LoRA that also trains each weight's magnitude), both as the `kind` of an adapter and in a worker's list
of adapters."""
_IMPLIED: Mapping[str, tuple[str, Any]] = {QLORA: ("quantization", "nf4"), DORA: ("dora", True)}
"""Settings of LoRA that the kinds `qlora` and `dora` stand for: the setting's name and its value, by kind."""


class AdapterSchema(Schema):
    """Interface of every adapter, used by trainers, the predictor, the exports and pages."""

    kind: str
    title: ClassVar[str]
    """Name of the adapter's method for people, such as `LoRA`."""

    @property
    def requirement(self) -> str:
        """Name that a worker must list in its adapters (`Offer.adapters`) to be able to train this adapter."""
        return self.kind

    def describe(self) -> str:
        """Return a short description for people, such as `LoRA r=16`."""
        raise NotImplementedError


class Lora(AdapterSchema):
    """Low-rank adaptation (Hu et al. 2021) by PEFT: two small matrices beside each adapted linear layer are trained."""

    title: ClassVar[str] = "LoRA"
    kind: Literal["lora"] = "lora"
    rank: int = Field(default=16, ge=1, le=4096)
    """Rank of the two matrices (PEFT's `r`). A larger rank trains more parameters."""
    alpha: float = Field(default=32.0, gt=0, le=1e6)
    """Numerator of the update's scale, `alpha / rank` (PEFT's `lora_alpha`)."""
    targets: Annotated[
        Literal["all-linear"] | tuple[ModulePath, ...], Field(examples=[ALL_LINEAR, ["q_proj", "v_proj"]])
    ] = ALL_LINEAR
    """Linear layers that get an adapter: a list of their names, or `all-linear` for every one in the repeated blocks.
    With fewer layers, fewer activations are kept in memory."""
    rslora: bool = False
    """Whether the scale is `alpha / √rank` (rank-stabilised LoRA)."""
    dora: Annotated[bool, Since(2)] = False
    """Whether the length of each adapted weight's rows is trained, too, apart from their direction (DoRA, Liu et al. 2024,
    arXiv:2402.09353; PEFT's `use_dora`). Each forward pass computes the lengths anew from whole weights, which takes time
    and memory."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout before the adapters; only 0 is trained, since dropout would make losses depend on the sharding."""
    quantization: Annotated[Quantization | None, Since(QUANTIZATION_SINCE)] = None
    """Number format of the frozen linear layers in the repeated blocks (`bnb_4bit_quant_type`). `nf4` keeps them in 4
    bits by bitsandbytes, as QLoRA does. This takes a quarter of bfloat16's memory, and time to convert the weights.
    Embeddings, norms and output head keep the dtype of the computation. If null, all frozen weights keep that dtype."""
    double_quantization: Annotated[bool, Since(QUANTIZATION_SINCE)] = False
    """Whether the scales of 4-bit weights are quantised too (`bnb_4bit_use_double_quant`). It saves 0.37 bits of each weight
    and costs time."""

    @field_validator("targets", mode="before")
    @classmethod
    def _one_name(cls, targets: object) -> object:
        """Accept a single name of a linear layer in place of a list of names."""
        return [targets] if isinstance(targets, str) and targets != ALL_LINEAR else targets

    @field_validator("targets")
    @classmethod
    def _some_targets(cls, targets: str | tuple[str, ...]) -> str | tuple[str, ...]:
        """Sort the targets, so that equal adapters give equal tuning targets; reject an empty list."""
        if isinstance(targets, str):
            return targets
        if not targets:
            raise ValueError(f"targets (an empty list) adapts nothing; name linear layers, or use {ALL_LINEAR!r}")
        numbered = next((target for target in targets if any(part.isdigit() for part in target.split("."))), None)
        if numbered is not None:
            raise ValueError(
                f"targets ({numbered!r:.100}) names one block; every block gets the adapter: name the layer within it, "
                "such as 'self_attn.q_proj'"
            )
        if len(targets) > 100:
            raise ValueError(f"targets ({len(targets)} names) may have 100; use {ALL_LINEAR!r}, or last names alone")
        return tuple(sorted(set(targets)))

    @field_validator("dropout")
    @classmethod
    def _no_dropout(cls, dropout: float, info: ValidationInfo) -> float:
        if dropout > 0:
            # PEFT 0.21 (`DoraLinearLayer.forward`): the frozen layer's output is that of the input before dropout.
            again = "where DoRA then multiplies by each adapted layer's frozen weight once more"
            speed = again if info.data.get("dora") else "whose speed it hardly changes"
            raise ValueError(
                f"dropout ({dropout:g}) makes losses depend on how the batch is divided over ranks, so that no trial "
                f"could be checked; set it to 0 here and use yours in the final training, {speed}"
            )
        return dropout

    @model_validator(mode="after")
    def _quantised_twice(self) -> Self:
        if self.double_quantization and self.quantization is None:
            raise ValueError(
                "double_quantization (true) quantises the scales of 4-bit weights, and quantization is null; set "
                "quantization to 'nf4', or double_quantization to false"
            )
        return self

    @model_validator(mode="after")
    def _dora_beside_packed_weights(self) -> Self:
        if self.dora and self.quantization is not None:
            raise ValueError(
                f"dora (true) with quantization ({self.quantization!r}): nobody has compared it over backends; leave out "
                "one of them"
            )
        return self

    @property
    def requirement(self) -> str:
        """Name that a worker must list in its adapters to be able to train this adapter: `lora`, `qlora` or `dora`.
        QLoRA and DoRA have names of their own, because QLoRA needs a package, and workers of earlier releases cannot
        train DoRA."""
        if self.dora:
            return DORA
        return self.kind if self.quantization is None else QLORA

    @property
    def scale(self) -> float:
        """Factor of the adapters' output."""
        return self.alpha / (self.rank**0.5 if self.rslora else self.rank)

    def describe(self) -> str:
        """Return a short description of the adapter for people, such as `QLoRA nf4 r=16`."""
        where = "" if isinstance(self.targets, str) else f" on {', '.join(self.targets)}"
        method = f"{'rs' if self.rslora else ''}{'DoRA' if self.dora else 'LoRA'}"
        if self.quantization is not None:
            method = (
                f"{'rs' if self.rslora else ''}QLoRA {self.quantization}{' double' if self.double_quantization else ''}"
            )
        return f"{method} r={self.rank}{where}"


class LastLayers(AdapterSchema):
    """Training of the model's last repeated blocks; embeddings, earlier blocks, last norm and output head stay frozen."""

    title: ClassVar[str] = "last layers"
    kind: Literal["last_layers"] = "last_layers"
    layers: int = Field(ge=1, le=1000)
    """Number of repeated blocks that are trained, counted from the last."""

    def describe(self) -> str:
        """Return a short description of the adapter for people, such as `last 2 layers`."""
        return f"last {self.layers} layers" if self.layers > 1 else "last layer"


ADAPTERS: dict[str, type[AdapterSchema]] = {"lora": Lora, "last_layers": LastLayers}
"""Adapters by kind."""
ADAPTER_KINDS = tuple(ADAPTERS)
"""Kinds of adapters that workers of this release train."""


def quantization_of(adapter: AdapterSchema | None) -> Quantization | None:
    """Return the number format of the quantised weights to which an adapter is added. None if no weight is
    quantised."""
    return adapter.quantization if isinstance(adapter, Lora) else None


def unsaid_settings(adapter: AdapterSchema) -> set[str]:
    """Return the names of those settings that later releases added and that this adapter leaves at their defaults. Keys
    of stored answers leave them out, so that answers of earlier releases keep their keys."""
    if not isinstance(adapter, Lora):
        return set()
    of_weights = set() if adapter.quantization else {"quantization", "double_quantization"}
    return of_weights | (set() if adapter.dora else {"dora"})


def _with_kind(value: object) -> object:
    """Check the kind of the adapter, and reject other libraries' names of settings, with a remedy for each."""
    if isinstance(value, AdapterSchema):
        return value
    if isinstance(value, str):
        value = {"kind": value}
    if not isinstance(value, Mapping):
        raise ValueError(f'adapter ({value!r:.100}) must be an object such as {{"kind": "lora", "rank": 16}}, or null')
    kind = value.get("kind", "last_layers" if "layers" in value else "lora")
    if isinstance(kind, str) and kind in _IMPLIED:
        kind, value = "lora", _with_implied(kind, value)
    check_foreign_names(value)
    if not isinstance(kind, str) or kind not in ADAPTERS:
        raise ValueError(f"kind ({kind!r:.100}) is unknown; use one of {', '.join((*ADAPTERS, *_IMPLIED))}")
    foreign = next((name for name in value if name in _PEFT_NAMES), None) if kind == "lora" else None
    if foreign is not None:
        raise ValueError(f"{foreign} ({value[foreign]!r:.100}) is PEFT's name; did you mean {_PEFT_NAMES[foreign]}?")
    return {**value, "kind": kind}


def _with_implied(kind: str, value: Mapping[str, Any]) -> dict[str, Any]:
    """Return LoRA's settings with the one that the kind stands for, such as `dora: true` for the kind `dora`. A setting
    that contradicts the kind is rejected."""
    name, implied = _IMPLIED[kind]
    stated = value.get(name, implied)
    if stated is None or stated is False:
        raise ValueError(
            f"{name} ({json.dumps(stated)}) contradicts kind ({kind!r}), which means LoRA with {name} ({json.dumps(implied)}); "
            f"leave out {name}, or use kind 'lora'"
        )
    return {name: implied, **value}


def _class_name(value: object) -> str:
    """Return the name of the adapter's class for validated or raw settings. Pydantic selects the member of the union by
    this name, and paths in error messages leave it out."""
    return (type(value) if isinstance(value, AdapterSchema) else ADAPTERS[str(value["kind"])]).__name__  # type: ignore[index]


_Settings = Annotated[
    Annotated[Lora, Tag("Lora")] | Annotated[LastLayers, Tag("LastLayers")], Discriminator(_class_name)
]
Adapter = Annotated[_Settings, BeforeValidator(_with_kind, json_schema_input_type=_Settings | str)] | None
"""Adapter to train, as an object with its settings or as its kind alone, such as `"lora"`. If null, all weights are
trained."""
