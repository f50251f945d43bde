"""Schemas of the model to be trained: a Hugging Face `config.json` (in full, as a preset's name or by its repository),
or the user's own code that is installed and allowed on the worker. A worker's `model_summary` task counts parameters and
FLOPs; this module does not import transformers."""

import json
import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, JsonValue, ValidationInfo, field_validator, model_validator

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.names import ClassName, ModelName, ModulePath, OwnName, PrintableText, model_name_of
from shardtune.api_schemas.protocol import Since
from shardtune.api_schemas.training.code_references import code_references
from shardtune.api_schemas.training.hub_source import HubSource, WrittenHubSource, looks_like_id
from shardtune.api_schemas.training.model_presets import preset_config, preset_names, unknown_model
from shardtune.api_schemas.training.search_space import Backend
from shardtune.api_schemas.training.step_trace import StepTrace, TraceFailure

LONGEST_CONFIG = 256 * 1024
"""Maximum number of characters in a model's JSON configuration. The longest published configurations have some tens of
thousands."""
MOST_ELEMENTS, MOST_FLOPS = 10**15, 1e18
"""Maximum number of parameters of a model, and maximum FLOPs per token. Both are about a thousand times as large as in
the largest models."""


_NO_TYPE = 'model_type ({}) must be the name of a transformers architecture; add it, for example "model_type": "llama"'

EXAMPLE: dict[str, Any] = {"name": "tiny", "config": preset_config("llama-tiny")}
"""Model used in the examples of the OpenAPI document."""


_MODEL_TYPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


class ModelSpec(Schema):
    """Model to train: a causal language model configured for `transformers`, or the user's own code. Trials create the
    weights instead of loading them."""

    name: ModelName
    """Display name of the model; it has no effect on trials."""
    entry_point: OwnName | None = None
    """Name of an entry point in the group `shardtune.models`, by which an installed Python package provides model,
    batches and loss."""
    script: OwnName | None = None
    """Name of the user's own training script, which contains Shardtune's adapter. The worker's owner has given this
    name to the command that starts the script."""
    hub: HubSource | None = None
    """Repository of the Hugging Face hub from which `config` was read. If a request leaves out `config`, a service
    whose operator allows it reads the repository's `config.json`, and stores the commit."""
    config: dict[str, JsonValue] = Field(default={}, validate_default=True)
    """Content of the model's `config.json`. Its `model_type` selects the architecture, and references to code
    (`auto_map`) are rejected. If `entry_point` or `script` is given, the configuration that the user's code reads."""

    @model_validator(mode="before")
    @classmethod
    def _accept_preset_or_config(cls, value: Any) -> Any:
        """Accept, in place of the full form `{name, config}`, the name of a preset, a repository of the hub, or the
        content of a `config.json`."""
        if isinstance(value, str):
            value = {"hub": value} if looks_like_id(value) else preset(value).model_dump()
        if not isinstance(value, dict):
            return value
        hub = value.get("hub")
        if hub is not None and "model_type" not in value:
            repository = hub.get("id") if isinstance(hub, dict) else hub
            return {"name": model_name_of(str(repository).partition("@")[0]), **value}
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
        if length > LONGEST_CONFIG:
            raise ValueError(
                f"config ({length} characters) must not exceed {LONGEST_CONFIG}; send the config.json alone"
            )
        named = next(code_references(config), None)
        if named is not None:
            raise ValueError(
                f"{named} names code to download and run, which Shardtune never does; "
                "remove it and use an architecture that transformers itself contains"
            )
        is_unread = info.data.get("hub") is not None and not config
        is_own = info.data.get("entry_point") is not None or info.data.get("script") is not None
        model_type = config.get("model_type")
        if not (is_own or is_unread) and not (isinstance(model_type, str) and _MODEL_TYPE.fullmatch(model_type)):
            raise ValueError(_NO_TYPE.format(f"{model_type!r:.100}"))
        return config

    @model_validator(mode="after")
    def _one_source(self) -> "ModelSpec":
        if self.entry_point is not None and self.script is not None:
            raise ValueError(
                f"entry_point ({self.entry_point!r}) and script ({self.script!r}) exclude each other; drop one of them"
            )
        if self.is_own and self.hub is not None:
            raise ValueError(f"hub ({self.hub}) names a published model, which your own code is not; drop one of them")
        return self

    @property
    def is_unread(self) -> bool:
        """Whether only the model's repository is known, so that its configuration must still be read from there."""
        return self.hub is not None and not self.config

    @property
    def is_own(self) -> bool:
        """Whether the model is built by the user's own code, so that transformers need not know the architecture."""
        return self.entry_point is not None or self.script is not None

    @property
    def trained_config(self) -> dict[str, JsonValue]:
        """Configuration of that part of the model which is trained. In a multimodal model this is the text part, itself
        a causal language model."""
        text = self.config.get("text_config")
        is_multimodal = not self.is_own and any(self.config.get(f"{kind}_config") for kind in ("vision", "audio"))
        return dict(text) if is_multimodal and isinstance(text, dict) and text.get("model_type") else self.config

    @property
    def model_type(self) -> str | None:
        """Name of the model's architecture in transformers, such as `llama`; None for code of the user's own."""
        return None if self.is_own else str(self.trained_config["model_type"])


def preset(name: str) -> ModelSpec:
    """Return the model preset with this name.

    Raises:
        ValueError: no preset has this name; the message suggests similar names, or lists the existing presets.
    """
    if name not in preset_names():
        raise ValueError(
            unknown_model(name, "a Hugging Face id such as Qwen/Qwen3-8B, or the content of a config.json")
        )
    return ModelSpec(name=name, config=preset_config(name))


PresetName = Annotated[str, Field(json_schema_extra={"enum": [*preset_names()]})]
BareConfig = Annotated[dict[str, JsonValue], Field(json_schema_extra={"required": ["model_type"]})]
ModelChoice = Annotated[
    ModelSpec,
    BeforeValidator(lambda value: value, json_schema_input_type=ModelSpec | PresetName | WrittenHubSource | BareConfig),
]
"""Model in a request: an object with all fields, the name of a preset, a repository on the Hugging Face hub, or the
content of a `config.json`."""


class BlockSummary(Schema):
    """Summary of one repeated block (decoder layer) of a model. FSDP shards by block, and activation checkpointing
    wraps each block."""

    name: ModulePath
    """Dotted module path of the block, such as `model.layers.0`."""
    parameters: int = Field(ge=0, le=MOST_ELEMENTS)
    """Number of parameters (elements) in the block."""
    largest_parameter: int = Field(ge=0, le=MOST_ELEMENTS)
    """Number of elements of the block's largest single parameter tensor."""
    trainable_parameters: int | None = Field(default=None, ge=0, le=MOST_ELEMENTS)
    """Number of parameters (elements) in the block that are trained; None if all are."""
    matrix_parameters: int | None = Field(default=None, ge=0, le=MOST_ELEMENTS)
    """Number of parameters (elements) in the block's weight matrices. Some optimizers, such as Muon, update each matrix
    as a whole. None if they were not counted."""
    forward_flops_per_token: float | None = Field(ge=0, le=MOST_FLOPS)
    """FLOPs of one token's forward pass through the block. A multiply-add counts as two. Attention is counted in full
    (not halved for causality), at the workload's sequence length. None if FLOPs were not counted."""


class ModelSummary(Schema):
    """Sizes and FLOPs of a model, counted by a worker that built the model on the meta device, without weights or an
    accelerator."""

    parameters: int = Field(ge=0, le=MOST_ELEMENTS)
    """Number of elements of all distinct parameters of the model (tied weights count once)."""
    trainable_parameters: int | None = Field(default=None, ge=0, le=MOST_ELEMENTS)
    """Number of parameter elements that are trained; None if all of the model's parameters are."""
    active_parameters: int = Field(ge=0, le=MOST_ELEMENTS)
    """Number of parameter elements that one token's forward pass uses. In a mixture of experts it is smaller than
    `parameters`."""
    blocks: tuple[BlockSummary, ...] = Field(max_length=1000)
    block_class: ClassName
    """Class name of the model's repeated block, such as `LlamaDecoderLayer`. If no block repeats, it is the class name
    of the whole model."""
    moe_class: ClassName | None = None
    """Class name of the mixture-of-experts module inside a block; None for dense models."""
    forward_flops_per_token: float | None = Field(ge=0, le=MOST_FLOPS)
    """FLOPs of one token's forward pass through the whole model, at the workload's sequence length; None if not
    counted."""
    training_flops_per_token: float | None = Field(default=None, ge=0, le=MOST_FLOPS)
    """FLOPs of one token's forward and backward pass. They are counted if an adapter freezes weights, whose gradients
    need not be computed. If None, they are three times the FLOPs of the forward pass."""
    least_flops_per_token: float | None = Field(default=None, ge=0, le=MOST_FLOPS)
    """Minimum FLOPs of one token's forward pass: attention skips masked positions, as fused kernels do. None if FLOPs
    were not counted."""
    hidden_size: int = Field(ge=0, le=MOST_ELEMENTS)
    """Width of the model's hidden states. It is 0 if the model does not report it, and so is `vocab_size`."""
    vocab_size: int = Field(ge=0, le=MOST_ELEMENTS)
    max_positions: int | None = Field(le=MOST_ELEMENTS)
    """Longest sequence in tokens that the model's configuration declares; None if it declares none."""
    attention: Literal["eager"] | None = None
    """Implementation of attention with which the model is built, because it does not support the one of the workload.
    If None, the workload's is used."""
    backends: tuple[Backend, ...] | None = Field(default=None, min_length=1)
    """Backends (such as FSDP2) that the user's own training script declares. None if it declares none, or if no such
    script trains but Shardtune's own loop."""
    context_heads: int | None = Field(default=None, ge=1, le=MOST_ELEMENTS)
    """Greatest common divisor of the model's numbers of heads. `context_parallel` (the number of ranks that share each
    sample) must divide it. 1 means that samples cannot be shared; None means that it was not determined."""
    context_note: PrintableText | None = Field(default=None, max_length=1000)
    """Reason, other than the number of heads, why ranks cannot share a sample of this model (context parallelism). None
    if there is none."""
    tensor_divisor: int | None = Field(default=None, ge=1, le=MOST_ELEMENTS)
    """Greatest common divisor of the model's numbers of heads and its block widths. `tensor_parallel` (the number of
    ranks that split the model) must divide it. 1 means that the model cannot be split; None means that it was not
    determined."""
    tensor_note: PrintableText | None = Field(default=None, max_length=1000)
    """Reason, other than the model's sizes, why ranks cannot split the model (tensor parallelism). None if there is
    none."""
    pipeline_blocks: int | None = Field(default=None, ge=1, le=MOST_ELEMENTS)
    """Maximum number of pipeline stages (`pipeline_parallel`) into which the model can be cut, with one block each. 1
    means that the model cannot be cut; None means that it was not determined."""
    pipeline_note: PrintableText | None = Field(default=None, max_length=1000)
    """Reason, other than the number of blocks, why the model cannot be cut into pipeline stages. None if there is
    none."""
    experts: int | None = Field(default=None, ge=1, le=MOST_ELEMENTS)
    """Number of experts per layer. `expert_parallel` (the number of ranks that divide the experts) must divide it. 1
    means that the experts cannot be divided; None means that it was not determined."""
    expert_width: int | None = Field(default=None, ge=1, le=MOST_ELEMENTS)
    """Greatest common divisor of the numbers of rows of the experts' weights. If each expert is sharded over several
    ranks, the number of shards must divide it. None means that it was not determined."""
    expert_note: PrintableText | None = Field(default=None, max_length=1000)
    """Reason, other than the number of experts, why ranks cannot divide the model's experts (expert parallelism). None
    if there is none."""
    loss_note: PrintableText | None = Field(default=None, max_length=1000)
    """Reason why the model's loss cannot be computed in chunks of tokens (`loss`); None if it can, or if that was not
    determined."""
    mlp_note: Annotated[PrintableText | None, Since(2, may_be_dropped=True)] = Field(default=None, max_length=1000)
    """Reason why the MLPs of the model's blocks cannot be computed over slices of the tokens (`mlp_slices`); None if they
    can, or if that was not determined."""
    note: PrintableText | None = Field(default=None, max_length=1000)
    """Reason why the model's FLOPs are not known, so that no speed is predicted; None if they are known. In a
    prediction for the user's own code, it names the study that traced a step of the code."""
    step_trace: Annotated[StepTrace | None, Since(2, may_be_dropped=True)] = None
    """Memory and work of one traced training step of the user's own code. None if no step was traced, and for models of
    transformers."""
    trace_failure: Annotated[TraceFailure | None, Since(2, may_be_dropped=True)] = None
    """Reason why no step of the user's own code was traced. None if one was traced, and for models of transformers."""

    @property
    def leaves_parameters_unused(self) -> bool:
        """Whether some trained parameters get no gradient in a step; False if no step was traced."""
        return self.step_trace is not None and self.step_trace.unused_parameters > 0

    @property
    def largest_block(self) -> int:
        """Number of parameter elements of the largest block, or of the whole model if no block repeats."""
        return max((block.parameters for block in self.blocks), default=self.parameters)

    @property
    def trainable(self) -> int:
        """Number of parameter elements that are trained."""
        return self.parameters if self.trainable_parameters is None else self.trainable_parameters

    @property
    def outside_blocks(self) -> int:
        """Number of parameter elements outside the repeated blocks: embeddings, final norm, output head."""
        return self.parameters - sum(block.parameters for block in self.blocks)
