"""Model to be trained: a Hugging Face `config.json` (in full, or by the name of a preset), or code of the user's own
that is installed and allowed on the worker, which a study can only name.

A worker's `model_summary` task counts parameters and FLOPs; nothing here imports transformers.
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
"""Characters of JSON; the longest published configurations have some tens of thousands."""
MOST_ELEMENTS, MOST_FLOPS = 10**15, 1e18
"""Upper bounds of elements of one model and of FLOPs of one token: a thousand times the largest models."""


_NO_TYPE = 'model_type ({}) must be the name of a transformers architecture; add it, for example "model_type": "llama"'

EXAMPLE: dict[str, Any] = {"name": "tiny", "config": json.loads((_PRESETS / "llama-tiny.json").read_text())}
"""A model for the examples of the API's document."""


def preset_names() -> list[str]:
    """Return the names accepted wherever a model is asked for."""
    return sorted(entry.name.removesuffix(".json") for entry in _PRESETS.iterdir() if entry.name.endswith(".json"))


_MODEL_TYPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_KERNELS = ("attn_implementation", "_attn_implementation", "experts_implementation", "_experts_implementation")
"""Fields in which transformers 5 takes `OWNER/REPOSITORY` for kernels to download."""


class ModelSpec(Schema):
    """Causal language model as `transformers` describes it, or the user's own; weights are made by the trial."""

    name: ModelName
    """Name for people; it has no effect on the trial."""
    entry_point: OwnName | None = None
    """Name in the entry-point group `shardtune.models`: model, batches and loss of an installed package."""
    script: OwnName | None = None
    """Name that the worker's owner gave the command of a training script of the user's own, with the adapter in it."""
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
        """Configuration of the model that is trained: of a multimodal model its text part, which is a causal
        language model of its own."""
        text = self.config.get("text_config")
        is_multimodal = not self.is_own and any(self.config.get(f"{kind}_config") for kind in ("vision", "audio"))
        return dict(text) if is_multimodal and isinstance(text, dict) and text.get("model_type") else self.config

    @property
    def model_type(self) -> str | None:
        """Transformers architecture that is trained, such as `llama`; None for the user's own code."""
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
    """Yield entries of a configuration, at any depth, that have transformers fetch and run code."""
    # No recursion: the sender chooses the nesting, and Python's limit would make it an error of ours.
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
    """One repeated block (decoder layer) of the model, which FSDP shards and checkpointing wraps."""

    name: ModulePath
    """Dotted module path, such as `model.layers.0`."""
    parameters: int = Field(ge=0, le=MOST_ELEMENTS)
    """Elements owned by the block."""
    largest_parameter: int = Field(ge=0, le=MOST_ELEMENTS)
    """Elements of its largest single tensor."""
    forward_flops_per_token: float | None = Field(ge=0, le=MOST_FLOPS)
    """FLOPs of one token's forward pass. Multiply-adds count as two; attention is counted in full (not halved for
    causality), at the workload's sequence. None where nothing was counted."""


class ModelSummary(Schema):
    """Summary of a model that a worker built on the meta device: no weights, no accelerator."""

    parameters: int = Field(ge=0, le=MOST_ELEMENTS)
    """Elements of all distinct parameters (tied weights count once)."""
    trainable_parameters: int | None = Field(default=None, ge=0, le=MOST_ELEMENTS)
    """Elements that are trained; None: all of them."""
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
    """FLOPs of one token where attention skips masked positions, as fused kernels do; None: not counted."""
    hidden_size: int = Field(ge=0, le=MOST_ELEMENTS)
    """Width of the hidden states; 0 where the model does not tell, as for `vocab_size`."""
    vocab_size: int = Field(ge=0, le=MOST_ELEMENTS)
    max_positions: int | None = Field(le=MOST_ELEMENTS)
    """Longest sequence the configuration declares, None where it declares none."""
    attention: Literal["eager"] | None = None
    """Attention that the model is built with where it lacks the workload's; None: as the workload says."""
    backends: tuple[Backend, ...] | None = Field(default=None, min_length=1)
    """Backends that the user's own training script declares; None: it declares none, or Shardtune's own loop trains."""
    context_heads: int | None = Field(default=None, ge=1, le=MOST_ELEMENTS)
    """Greatest common divisor of the model's heads; the number of ranks that share a sample (`context_parallel`)
    must divide it. 1: no ranks can share; None: nobody has looked."""
    context_note: str | None = Field(default=None, max_length=1000)
    """Reason why no ranks can share a sample, other than the number of heads."""
    tensor_divisor: int | None = Field(default=None, ge=1, le=MOST_ELEMENTS)
    """Greatest common divisor of the model's heads and of its blocks' widths; the number of ranks that split the
    model (`tensor_parallel`) must divide it. 1: no ranks can; None: nobody has looked."""
    tensor_note: str | None = Field(default=None, max_length=1000)
    """Reason why no ranks can split the model, other than its sizes."""
    pipeline_blocks: int | None = Field(default=None, ge=1, le=MOST_ELEMENTS)
    """Most stages that the model can be cut into (`pipeline_parallel`), a block each; 1: it cannot; None: nobody has
    looked."""
    pipeline_note: str | None = Field(default=None, max_length=1000)
    """Reason why the model cannot be cut into stages, other than the number of its blocks."""
    experts: int | None = Field(default=None, ge=1, le=MOST_ELEMENTS)
    """Number of experts per layer; the number of ranks that divide them (`expert_parallel`) must divide it. 1: no
    ranks can; None: nobody has looked."""
    expert_width: int | None = Field(default=None, ge=1, le=MOST_ELEMENTS)
    """Greatest common divisor of the rows of the experts' weights. It must be divisible by the number of parts of an
    expert, where a rank has less than a whole one."""
    expert_note: str | None = Field(default=None, max_length=1000)
    """Reason why no ranks can divide the experts, other than their number."""
    note: str | None = Field(default=None, max_length=1000)
    """Reason why its FLOPs are not known, so that nothing is predicted; None where they are, or where own code makes
    the model."""

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
