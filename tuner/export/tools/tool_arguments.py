"""Arguments that the fine-tuning tools share: the Trainer's, in the names of the transformers releases that the tools
pin (5.6 to 5.20), and the differences from the measured trial that all tools have."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shardtune.api_schemas.strategies import DdpConfig, Fsdp2Config, TrialConfig, ZeroConfig
from shardtune.api_schemas.training.adapters import LastLayers, Lora
from shardtune.tuner.export import adapters
from shardtune.tuner.export.backends import activation_offload as offload
from shardtune.tuner.export.backends.registry import Backends
from shardtune.tuner.export.source import ExportSource
from shardtune.tuner.export.trainer import training_arguments
from shardtune.tuner.export.trainer.repository import SET_ME, missing_note
from shardtune.tuner.export.trial_rendering import LossyNote, note_texts

DEEPSPEED = "ds_config.json"
NON_REENTRANT: Mapping[str, Any] = {"use_reentrant": False}
_BUCKET_VIEW = "gradient_as_bucket_view"
_REWORDED = (
    training_arguments.LOSS,
    training_arguments.LOADED_DTYPE,
    training_arguments.ACTIVATION_OFFLOAD,
    training_arguments.SCRIPT,
    _BUCKET_VIEW,
)
"""Subjects of those notes about the Trainer that do not apply to a fine-tuning tool, or that are about the Trainer's
script."""


@dataclass(frozen=True)
class ToolArguments:
    """Arguments for a fine-tuning tool, with the differences between its training and the measured trial."""

    values: dict[str, Any]
    """Fields of `TrainingArguments` by name, without those of sharding and checkpointing."""
    fsdp: dict[str, Any] | None
    """Settings of FSDP2 for the tool; None where the trial used another backend."""
    deepspeed: dict[str, Any] | None
    """Content of the DeepSpeed JSON for the tool; None where the trial used another backend."""
    checkpoints: bool
    """Whether each block is checkpointed as a whole by the model itself, not by a setting of FSDP."""
    config: TrialConfig
    """Configuration that the tool runs, as near as Shardtune's own fields can express it."""
    notes: tuple[LossyNote, ...]

    @property
    def lossy(self) -> tuple[str, ...]:
        """Sentences of all notes."""
        return note_texts(self.notes)


def tool_arguments(source: ExportSource, tool: str, backends: Backends) -> ToolArguments:
    """Return the arguments of the measured configuration for a fine-tuning tool.

    Raises:
        ValueError: transformers' Trainer lacks the backend, or the configuration uses more than data parallelism.
    """
    trainer = training_arguments.arguments(source, tool, backends)
    values = dict(trainer.values)
    values.pop("fsdp", None)
    fsdp, deepspeed = values.pop("fsdp_config", None), values.pop("deepspeed", None)
    # The pinned releases know the older name alone (transformers 5.20).
    checkpoints = bool(values.pop("activation_checkpointing", False))
    values.pop("activation_checkpointing_kwargs", None)
    strategy = source.config.strategy
    own_texts = []
    if isinstance(strategy, DdpConfig) and strategy.gradient_as_bucket_view:
        own_texts.append(f"{_BUCKET_VIEW}: True was measured; {tool} has False, as it has no field for it")
    config, offload_notes = offload.tool_config(trainer.config, tool, source.config)
    own_texts += [*offload_notes, *_notes(source, tool)]
    notes = (
        *(note for note in trainer.notes if note.subject not in _REWORDED),
        *(LossyNote(training_arguments.OTHER, text) for text in own_texts),
    )
    return ToolArguments(values, fsdp, deepspeed, checkpoints, config, notes)


def _notes(source: ExportSource, tool: str) -> tuple[str, ...]:
    lines = []
    if source.config.has_chunked_loss:
        chunks = "compiled chunks" if source.config.loss_compile else "chunks"
        lines.append(f"loss: {chunks} of {source.config.loss_chunk} tokens were measured; {tool} computes whole logits")
    if source.workload.adapter is None:
        lines.append(
            "adapters: all weights were trained; an adapter trains something else, for which another configuration may be "
            "faster"
        )
    return (*lines, *missing_note(source, f"the field with {SET_ME}"))


def one_shard_group(source: ExportSource, config: TrialConfig, tool: str) -> tuple[TrialConfig, tuple[str, ...]]:
    """Configuration as run by a tool that always shards over all ranks, with a note if the trial sharded within groups
    of ranks and replicated across them."""
    strategy = config.strategy
    if not isinstance(strategy, Fsdp2Config) or strategy.dp_replicate == 1:
        return config, ()
    ranks = source.cluster.world_size
    whole = strategy.model_copy(update={"dp_replicate": 1, "dp_shard": ranks})
    note = f"dp_replicate: {strategy.dp_replicate} was measured; {tool} has 1 and dp_shard {ranks}, as its file shards over all ranks"
    return config.model_copy(update={"strategy": whole}), (note,)


def lora_of(source: ExportSource) -> tuple[Lora, str | list[str]] | None:
    """LoRA adapter of the measured trial, with the names of the layers that it adapts; None for any other training."""
    lora = source.workload.adapter
    return (lora, adapters.lora_targets(source, lora)) if isinstance(lora, Lora) else None


def trained_blocks(source: ExportSource) -> list[str]:
    """Paths of the blocks that are trained, such as `model.layers.31`, in a study that trains only the last layers;
    empty for other studies."""
    adapter = source.workload.adapter
    if not isinstance(adapter, LastLayers):
        return []
    count = len(source.model_summary.blocks)
    return [f"{source.block_list}.{number}" for number in range(max(0, count - adapter.layers), count)]


def alpha_of(lora: Lora, tool: str) -> int:
    """Scale (alpha) of a LoRA adapter, for a tool that accepts only whole numbers.

    Raises:
        ValueError: the measured scale is not a whole number.
    """
    if lora.alpha != int(lora.alpha):
        raise ValueError(
            f"adapter.alpha ({lora.alpha}) cannot be expressed in {tool}, which takes a whole number; take --format trl, or "
            "tune with a whole number"
        )
    return int(lora.alpha)


def has_masters_apart(source: ExportSource) -> bool:
    """Whether the trial kept float32 masters beside weights in the compute dtype, or computed in bfloat16 under
    autocast."""
    return source.workload.precision.mixes_bfloat16


def is_zero(source: ExportSource, stage: int | None = None) -> bool:
    """Whether the trial used DeepSpeed ZeRO, of the given stage where one is given."""
    strategy = source.config.strategy
    return isinstance(strategy, ZeroConfig) and stage in (None, strategy.stage)
