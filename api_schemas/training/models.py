"""Which model is trained: a Hugging Face `config.json` (whole, or by the name of a preset), or code of the user's own
that is installed and allowed on the worker, which a study can only name.

What the architecture means (parameters, FLOPs) is found by a worker's `profile` task; nothing here imports transformers.
"""

import json
import re
from collections.abc import Iterator
from importlib.resources import files
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, JsonValue, ValidationInfo, field_validator, model_validator

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.names import ClassName, ModelName, ModulePath, OwnName, model_name_of
from shardtune.api_schemas.training.search_space import Backend

_PRESETS = files("shardtune.api_schemas.training") / "presets"
_LONGEST_CONFIG = 256 * 1024
"""Characters of JSON; the longest that the field publishes have some tens of thousands."""
MOST_ELEMENTS, MOST_FLOPS = 10**15, 1e18
"""Of one model, and of one token through it: a thousand times the largest there are."""


_NO_TYPE = 'model_type ({}) must be the name of a transformers architecture; add it, for example "model_type": "llama"'

EXAMPLE: dict[str, Any] = {"name": "tiny", "config": json.loads((_PRESETS / "llama-tiny.json").read_text())}
"""A model for the examples of the API's document."""


def preset_names() -> list[str]:
    """Names accepted wherever a model is asked for."""
    return sorted(entry.name.removesuffix(".json") for entry in _PRESETS.iterdir() if entry.name.endswith(".json"))


_MODEL_TYPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_KERNELS = ("attn_implementation", "_attn_implementation", "experts_implementation", "_experts_implementation")
"""Where transformers 5 takes `OWNER/REPOSITORY` for kernels to download."""


class ModelSpec(Schema):
    """A causal language model as `transformers` describes it, or the user's own; weights are made by the trial."""

    name: ModelName
    """What people call it; has no effect on the trial."""
    entry_point: OwnName | None = None
    """Model, batches and loss of an installed package: its name in the entry-point group `shardtune.models`."""
    script: OwnName | None = None
    """A training script of the user's own, with the adapter in it: the name that the worker's owner gave its command."""
    config: dict[str, JsonValue] = Field(default={}, validate_default=True)
    """The content of `config.json`: `model_type` chooses the architecture; code references (`auto_map`) are rejected.
    With `entry_point` or `script`: whatever that code reads."""

    @model_validator(mode="before")
    @classmethod
    def _accept_preset_or_config(cls, value: Any) -> Any:
        """Accept a preset's name or a bare `config.json` in place of `{name, config}`."""
        if isinstance(value, str):
            return preset(value).model_dump()
        if not isinstance(value, dict):
            return value
        own = value.get("entry_point") or value.get("script")
        if own is not None:
            return {"name": own, **value}
        if not {"name", "config", "model_type"} & value.keys():
            raise ValueError(_NO_TYPE.format(None))
        if "model_type" in value:
            return {"name": model_name_of(str(value.get("_name_or_path") or value["model_type"])), "config": value}
        return value

    @field_validator("config")
    @classmethod
    def _plain_architecture(cls, config: dict[str, JsonValue], info: ValidationInfo) -> dict[str, JsonValue]:
        length = len(json.dumps(config))
        if length > _LONGEST_CONFIG:
            raise ValueError(
                f"config ({length} characters) must not exceed {_LONGEST_CONFIG}; send the config.json alone"
            )
        named = next(_named_code(config), None)
        if named is not None:
            raise ValueError(
                f"{named} names code to download and run, which Shardtune never does; "
                "remove it and use an architecture that transformers itself contains"
            )
        is_own = info.data.get("entry_point") is not None or info.data.get("script") is not None
        model_type = config.get("model_type")
        if not is_own and not (isinstance(model_type, str) and _MODEL_TYPE.fullmatch(model_type)):
            raise ValueError(_NO_TYPE.format(f"{model_type!r:.100}"))
        return config

    @model_validator(mode="after")
    def _one_source(self) -> "ModelSpec":
        if self.entry_point is not None and self.script is not None:
            raise ValueError(
                f"entry_point ({self.entry_point!r}) and script ({self.script!r}) exclude each other; drop one of them"
            )
        return self

    @property
    def is_own(self) -> bool:
        """Whether the user's own code makes the model, so that transformers need not know it."""
        return self.entry_point is not None or self.script is not None

    @property
    def trained_config(self) -> dict[str, JsonValue]:
        """The configuration of what is trained: of a multimodal model its text part, which is a causal language model of its own."""
        text = self.config.get("text_config")
        is_multimodal = not self.is_own and any(self.config.get(f"{kind}_config") for kind in ("vision", "audio"))
        return dict(text) if is_multimodal and isinstance(text, dict) and text.get("model_type") else self.config

    @property
    def model_type(self) -> str | None:
        """The transformers architecture that is trained, such as `llama`; None for the user's own code."""
        return None if self.is_own else str(self.trained_config["model_type"])


def preset(name: str) -> ModelSpec:
    """Return the preset of that name.

    Raises:
        ValueError: no such preset; the message lists those that exist.
    """
    if name not in preset_names():
        raise ValueError(
            f"model ({name!r}) is not a preset; use one of {', '.join(preset_names())}, or give the content of a config.json"
        )
    return ModelSpec(name=name, config=json.loads((_PRESETS / f"{name}.json").read_text()))


def _named_code(config: dict[str, Any]) -> Iterator[str]:
    """Entries of a configuration, at any depth, that have transformers fetch and run code; no recursion, since the
    nesting is the sender's."""
    inner: list[Any] = [config]
    while inner:
        value = inner.pop()
        inner += value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        if isinstance(value, dict) and "auto_map" in value:
            yield "auto_map"
        if isinstance(value, dict):
            yield from (name for name in _KERNELS if "/" in str(value.get(name)))


PresetName = Annotated[str, Field(json_schema_extra={"enum": [*preset_names()]})]
BareConfig = Annotated[dict[str, JsonValue], Field(json_schema_extra={"required": ["model_type"]})]
ModelChoice = Annotated[
    ModelSpec, BeforeValidator(lambda value: value, json_schema_input_type=ModelSpec | PresetName | BareConfig)
]
"""A model as a request may name it: in full, by its preset, or as a bare `config.json`."""


class BlockSummary(Schema):
    """One repeated block (decoder layer) of the model, the unit FSDP shards and checkpointing wraps."""

    name: ModulePath
    """Dotted module path, such as `model.layers.0`."""
    parameters: int = Field(ge=0, le=MOST_ELEMENTS)
    """Elements owned by the block."""
    largest_parameter: int = Field(ge=0, le=MOST_ELEMENTS)
    """Elements of its largest single tensor."""
    forward_flops_per_token: float | None = Field(ge=0, le=MOST_FLOPS)
    """Multiply-adds count as two; attention is counted in full (not halved for causality), at the workload's sequence.
    None where nothing was counted."""


class ModelSummary(Schema):
    """What a worker learnt by building the model on the meta device: no weights, no accelerator."""

    parameters: int = Field(ge=0, le=MOST_ELEMENTS)
    """Elements of all distinct parameters (tied weights count once)."""
    trainable_parameters: int | None = Field(default=None, ge=0, le=MOST_ELEMENTS)
    """Of these, elements that are trained; None: all of them."""
    active_parameters: int = Field(ge=0, le=MOST_ELEMENTS)
    """Elements that take part in one token's forward pass (less than `parameters` for a mixture of experts)."""
    blocks: tuple[BlockSummary, ...] = Field(max_length=1000)
    block_class: ClassName
    """Class name of the repeated block, such as `LlamaDecoderLayer`; of the whole model where nothing repeats."""
    moe_class: ClassName | None = None
    """Class name of the mixture-of-experts module inside a block, None for dense models."""
    forward_flops_per_token: float | None = Field(ge=0, le=MOST_FLOPS)
    """FLOPs of one token's forward pass through the whole model, at the workload's sequence length; None: not counted."""
    least_flops_per_token: float | None = Field(default=None, ge=0, le=MOST_FLOPS)
    """The same where attention skips what its mask hides, as fused kernels do; None: not counted."""
    hidden_size: int = Field(ge=0, le=MOST_ELEMENTS)
    """0 where the model does not say; so has the next."""
    vocab_size: int = Field(ge=0, le=MOST_ELEMENTS)
    max_positions: int | None = Field(le=MOST_ELEMENTS)
    """Longest sequence the configuration declares, None where it declares none."""
    attention: Literal["eager"] | None = None
    """What the model is built with where it lacks the workload's; None: as the workload says."""
    backends: tuple[Backend, ...] | None = Field(default=None, min_length=1)
    """That the user's own training script can take, as it says itself; None: it does not say, or Shardtune's own loop trains."""
    context_heads: int | None = Field(default=None, ge=1, le=MOST_ELEMENTS)
    """Ranks that share a sample (`context_parallel`) must divide it: the greatest common divisor of its heads; 1: none can;
    None: nobody has looked."""
    context_note: str | None = Field(default=None, max_length=1000)
    """Why none can, where it is not for the number of its heads."""
    tensor_divisor: int | None = Field(default=None, ge=1, le=MOST_ELEMENTS)
    """Ranks that split the model (`tensor_parallel`) must divide it: the greatest common divisor of its heads and of its
    blocks' widths; 1: none can; None: nobody has looked."""
    tensor_note: str | None = Field(default=None, max_length=1000)
    """Why none can, where it is not for its sizes."""
    pipeline_blocks: int | None = Field(default=None, ge=1, le=MOST_ELEMENTS)
    """Stages that the model can be cut into at most (`pipeline_parallel`), a block each; 1: it cannot; None: nobody has looked."""
    pipeline_note: str | None = Field(default=None, max_length=1000)
    """Why it cannot, where it is not for the number of its blocks."""
    experts: int | None = Field(default=None, ge=1, le=MOST_ELEMENTS)
    """Of each layer; ranks that divide them (`expert_parallel`) must divide it; 1: none can; None: nobody has looked."""
    expert_width: int | None = Field(default=None, ge=1, le=MOST_ELEMENTS)
    """What parts of experts must divide, where a rank has not a whole one: the greatest common divisor of their weights' rows."""
    expert_note: str | None = Field(default=None, max_length=1000)
    """Why no ranks can divide them, where it is not for their number."""
    note: str | None = Field(default=None, max_length=1000)
    """Why its FLOPs are not known, so that nothing is predicted; None where they are, or where own code makes the model."""

    @property
    def largest_block(self) -> int:
        """Elements of the largest block; of the whole model where nothing repeats."""
        return max((block.parameters for block in self.blocks), default=self.parameters)

    @property
    def trainable(self) -> int:
        """Elements that are trained."""
        return self.parameters if self.trainable_parameters is None else self.trainable_parameters

    @property
    def outside_blocks(self) -> int:
        """Elements in no block: embeddings, final norm, output head."""
        return self.parameters - sum(block.parameters for block in self.blocks)
