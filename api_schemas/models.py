"""Which model is trained: a Hugging Face `config.json`, given whole or by the name of a preset.

What the architecture means (parameters, FLOPs) is found by a worker's `profile` task; nothing here imports transformers.
"""

import json
from importlib.resources import files
from typing import Any

from pydantic import Field, JsonValue, field_validator, model_validator

from api_schemas.base import Schema

_PRESETS = files("api_schemas") / "presets"


def preset_names() -> list[str]:
    """Names accepted wherever a model is asked for."""
    return sorted(entry.name.removesuffix(".json") for entry in _PRESETS.iterdir() if entry.name.endswith(".json"))


class ModelSpec(Schema):
    """A causal language model as `transformers` describes it; weights are made by the trial, never loaded."""

    name: str = Field(min_length=1, max_length=200)
    """What people call it; has no effect on the trial."""
    config: dict[str, JsonValue]
    """The content of `config.json`. `model_type` chooses the architecture; code references (`auto_map`) are refused."""

    @model_validator(mode="before")
    @classmethod
    def _accept_preset_or_config(cls, value: Any) -> Any:
        """Accept a preset's name or a bare `config.json` in place of `{name, config}`."""
        if isinstance(value, str):
            return preset(value).model_dump()
        if isinstance(value, dict) and "model_type" in value:
            return {"name": str(value.get("_name_or_path") or value["model_type"]), "config": value}
        return value

    @field_validator("config")
    @classmethod
    def _plain_architecture(cls, config: dict[str, JsonValue]) -> dict[str, JsonValue]:
        if not isinstance(config.get("model_type"), str):
            raise ValueError(
                f"model_type ({config.get('model_type')!r}) must be the name of a transformers architecture; "
                'add it, for example "model_type": "llama"'
            )
        if "auto_map" in config:
            raise ValueError(
                "auto_map names code to download and run, which Shardtune never does; "
                "remove it and use an architecture that transformers itself contains"
            )
        return config

    @property
    def model_type(self) -> str:
        """The transformers architecture, such as `llama`."""
        return str(self.config["model_type"])


def preset(name: str) -> ModelSpec:
    """Return the preset of that name.

    Raises:
        ValueError: no such preset; the message lists those that exist.
    """
    if name not in preset_names():
        raise ValueError(f"model ({name!r}) is not a preset; use one of {', '.join(preset_names())}, or a config.json")
    return ModelSpec(name=name, config=json.loads((_PRESETS / f"{name}.json").read_text()))


class BlockProfile(Schema):
    """One repeated block (decoder layer) of the model, the unit FSDP shards and checkpointing wraps."""

    name: str
    """Dotted module path, such as `model.layers.0`."""
    parameters: int
    """Elements owned by the block."""
    largest_parameter: int
    """Elements of its largest single tensor."""
    forward_flops_per_token: float
    """Multiply-adds count as two; attention is counted in full (not halved for causality), at the workload's sequence."""


class ModelProfile(Schema):
    """What a worker learnt by building the model on the meta device: no weights, no accelerator."""

    parameters: int
    """Elements of all distinct parameters (tied weights count once)."""
    active_parameters: int
    """Elements that take part in one token's forward pass (less than `parameters` for a mixture of experts)."""
    blocks: tuple[BlockProfile, ...]
    block_class: str
    """Class name of the repeated block, such as `LlamaDecoderLayer`."""
    moe_class: str | None = None
    """Class name of the mixture-of-experts module inside a block, None for dense models."""
    forward_flops_per_token: float
    """FLOPs of one token's forward pass through the whole model, at the workload's sequence length."""
    hidden_size: int
    vocab_size: int
    max_positions: int | None
    """Longest sequence the configuration declares, None where it declares none."""

    @property
    def largest_block(self) -> int:
        """Elements of the largest block."""
        return max(block.parameters for block in self.blocks)

    @property
    def outside_blocks(self) -> int:
        """Elements in no block: embeddings, final norm, output head."""
        return self.parameters - sum(block.parameters for block in self.blocks)
