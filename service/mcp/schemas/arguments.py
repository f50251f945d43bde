"""Arguments of the tools that compute: predictions, memory, explanations and plans."""

from datetime import date
from typing import Any, Literal

from pydantic import Field, JsonValue

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.machines.networks import NetworkName
from shardtune.api_schemas.strategies import Checkpointing
from shardtune.api_schemas.training.adapters import Adapter
from shardtune.api_schemas.training.sample_lengths import SampleLengths
from shardtune.api_schemas.trials.predictions import PredictionRequest

AttentionName = Literal["sdpa", "eager", "flash_attention_2"]
PrecisionName = Literal["auto", "bf16-mixed", "bf16-autocast", "bf16-true", "fp16-mixed", "fp32"]
_MODELS = ["llama-3.1-8b", "Qwen/Qwen3-8B"]


class JobArguments(Schema):
    """Training job: model, cluster and workload."""

    model: str | dict[str, JsonValue] = Field(examples=_MODELS)
    """Preset such as `llama-3.1-8b`, Hugging Face id `OWNER/NAME`, or the content of a `config.json`."""
    cluster: str | dict[str, JsonValue] = Field(examples=["8xh100", "4x8xa100-80gb"])
    """Nodes × GPUs per node × GPU, such as `8xh100` or `4x8xa100-80gb`; `local`: the machine that was measured, or the
    service's workers."""
    sequence_length: int | None = None
    """Tokens per sample; null: the model's maximum, up to 4096."""
    precision: PrecisionName = "auto"
    """Dtypes of training: `bf16-mixed` keeps fp32 master weights; `auto` follows the GPU."""
    optimizer: str | dict[str, JsonValue] = "adamw"
    """Optimizer: its kind, such as `adamw` or `muon`, or an object with `kind` and settings."""
    adapter: Adapter = Field(
        default=None, examples=[{"kind": "lora", "rank": 16}, {"kind": "last_layers", "layers": 2}]
    )
    """Part of the model that is trained while all other weights stay frozen; null: all weights are trained."""
    data: SampleLengths | None = None
    """Lengths of the samples; null: every sample has `sequence_length` tokens."""
    attention: AttentionName = "sdpa"
    """Implementation of attention, by the name that transformers uses; `eager` keeps the scores of every pair of
    tokens in memory."""

    def request(self, **more: Any) -> PredictionRequest:
        """Return these arguments as a prediction request.

        Raises:
            ValidationError: a value is wrong.
        """
        values = {
            "model": self.model,
            "cluster": self.cluster,
            "sequence_length": self.sequence_length,
            "precision": self.precision,
            "optimizer": self.optimizer,
            "adapter": self.adapter,
            "data": self.data,
            "attention": self.attention,
        }
        return PredictionRequest.model_validate(values | more)


class PredictArguments(JobArguments):
    """Arguments of `predict`."""

    global_batch: int | None = None
    """Samples per optimizer step over all GPUs; null: 8 per GPU."""
    top: int = Field(default=3, ge=1, le=20)
    """Maximum number of configurations to return."""
    backends: tuple[Literal["ddp", "zero", "fsdp2", "fsdp1"], ...] = ()
    """Backends to search; empty: all."""
    knobs: dict[str, JsonValue] = {}
    """Limits of knobs as in a study's `space.knobs`, such as `{"tensor_parallel": [1, 2]}` or `{"micro_batch": 1}`."""


class MemoryArguments(JobArguments):
    """Arguments of `memory`."""

    micro_batch: int = 1
    """Samples per forward pass and GPU."""
    checkpointing: Checkpointing = "none"
    """Activation checkpointing: `none`, `selective` or `full`."""


class ExplainConfigArguments(JobArguments):
    """Arguments of `explain_config`."""

    config: dict[str, JsonValue] = Field(
        examples=[{"strategy": {"kind": "fsdp2", "dp_shard": 8}, "micro_batch": 1, "activation_checkpointing": "full"}]
    )
    """Configuration in Shardtune's format (`dp_shard`: GPUs that share one copy of the states), or the unchanged content
    of a DeepSpeed JSON, an Accelerate configuration or TrainingArguments."""
    global_batch: int | None = None
    """Samples per optimizer step; null: as many as one forward pass takes. Required for a file of another program."""


class PlanArguments(Schema):
    """Arguments of `plan`."""

    model: str | dict[str, JsonValue] = Field(examples=_MODELS)
    """Preset such as `llama-3.1-8b`, Hugging Face id `OWNER/NAME`, or the content of a `config.json`."""
    tokens: float = Field(examples=[3e11])
    """Number of tokens that the run trains on."""
    gpus: tuple[str, ...] = Field(min_length=1, max_length=12, examples=[["h100", "h200"]])
    """Kinds of GPUs by their names in the catalogue."""
    counts: tuple[int, ...] = Field(min_length=1, max_length=64, examples=[[64, 128]])
    """Numbers of GPUs."""
    gpus_per_node: int = 8
    """Number of GPUs of a node."""
    network: NetworkName | None = Field(default=None, examples=["infiniband-ndr"])
    """Network between nodes by name; null: the usual one of each kind of GPU."""
    nodes_per_leaf: int | None = Field(default=None, examples=[32])
    """Number of nodes below one leaf switch; null: all of them."""
    oversubscription: float | None = Field(default=None, examples=[2.0])
    """Bandwidth of a leaf switch's nodes divided by that of its uplinks; null: 1."""
    prices: dict[str, float] = {}
    """Price of a GPU-hour by kind of GPU, in your currency."""
    currency: str | None = Field(default=None, examples=["USD"])
    """Currency of the prices and the budget; null if it is not stated. A service's own prices are used beside yours only
    if this is the service's currency."""
    budget: float | None = None
    """Money that the run may cost."""
    start: date | None = None
    """Day (UTC) on which the run starts, at midnight; null: now."""
    deadline: date | None = None
    """Last day on which the run may end."""
    sequence_length: int | None = None
    """Tokens per sample; null: the model's maximum, up to 4096."""
    global_batch: int | None = None
    """Samples per optimizer step; null: those of the study, or chosen according to the FLOPs of the run."""
    precision: PrecisionName = "auto"
    """Dtypes of training."""
    overhead: float = 0.15
    """Time for evaluation, data and pauses, which is added to the step time, as a fraction of it."""
    measurements: tuple[dict[str, JsonValue], ...] = ()
    """Measurements on a few GPUs (`gpu`, `gpus`, `config`, `tokens_per_s_per_gpu`), from which speeds on more GPUs are
    projected."""
    study: str | None = Field(default=None, examples=["study-3f9a0c12be47"])
    """Id of a stored study of this model, or `last`: rows are measured or projected by it where it has an answer. Needs a
    service."""
    rows: int = Field(default=6, ge=1, le=120)
    """Maximum number of rows to return; those with the fewest GPU-hours are returned."""
