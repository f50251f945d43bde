"""Offload of checkpointed blocks' inputs in exported files: parts of `train_snippet.py`, and notes for programs that
express it otherwise or not at all."""

from shardtune.api_schemas.strategies import Fsdp1Config, Fsdp2Config, TrialConfig
from shardtune.tuner.export.source import ExportSource
from shardtune.tuner.export.templates import fill

_WORDS = "blocks' inputs in host memory"
_ON_ONE_STREAM = (
    "activation_offload: copies beside the computation were measured; {} copies on the computation's own stream, which makes "
    "its steps slower"
)


def uses_streams(source: ExportSource) -> bool:
    """Whether the exported script copies offloaded activations on separate CUDA streams; it does for activation offload
    on GPUs."""
    return source.config.activation_offload and not source.on_cpu


def standard(source: ExportSource) -> list[str]:
    """Names of the standard library modules that the functions for activation offload need in the exported script."""
    return ["functools", "itertools", "weakref"] if uses_streams(source) else []


def helpers(source: ExportSource) -> str:
    """Source of the functions that `train_snippet.py` defines for full activation checkpointing with offload to host
    memory."""
    return fill("checkpointing_offload_on_cpu" if source.on_cpu else "checkpointing_offload")


def words(source: ExportSource) -> str:
    """Phrase about activation offload that follows the description of checkpointing in a note; empty without the
    offload."""
    return f", {_WORDS}" if source.config.activation_offload else ""


def accelerate_section(source: ExportSource) -> dict[str, bool]:
    """Field of Accelerate's FSDP section, as a mapping, that keeps the inputs of checkpointed blocks in host memory;
    empty where this is off, or where only some blocks are checkpointed."""
    is_whole = source.config.activation_offload and source.config.checkpoints_whole_blocks
    return {"fsdp_activation_checkpointing_offload": True} if is_whole else {}


def accelerate_losses(source: ExportSource) -> tuple[str, ...]:
    """Note on what Accelerate lacks of activation offload, where each block is checkpointed whole; empty without the
    offload."""
    if not source.config.activation_offload or not source.config.checkpoints_whole_blocks:
        return ()
    if isinstance(source.config.strategy, Fsdp1Config):
        return (f"activation_offload ({_WORDS}): Accelerate has it for FSDP2 alone; see {source.shown_in}",)
    return (_ON_ONE_STREAM.format("Accelerate"),)


def in_trainer(config: TrialConfig, *, has_mesh: bool = False) -> bool:
    """Whether transformers' Trainer can be told to keep the inputs of checkpointed blocks in host memory. `has_mesh`:
    whether transformers shards the model when it loads it, without Accelerate's FSDP plugin."""
    # Under FSDP the Trainer hands its plugin no such field (transformers 5.23).
    has_plugin = isinstance(config.strategy, Fsdp1Config | Fsdp2Config) and not has_mesh
    return config.activation_offload and config.checkpoints_whole_blocks and not has_plugin


def trainer_notes(source: ExportSource, consumer: str, *, has_mesh: bool = False) -> tuple[str, ...]:
    """Notes on activation offload for programs with transformers' Trainer. `has_mesh`: whether transformers shards the
    model when it loads it."""
    config = source.config
    if not config.activation_offload:
        return ()
    if in_trainer(config, has_mesh=has_mesh):
        return (_ON_ONE_STREAM.format(consumer),)
    if isinstance(config.strategy, Fsdp2Config) and config.checkpoints_whole_blocks:
        variable = "FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD"
        return (
            f"activation_offload: set {variable}=true in the environment of the ranks, which Accelerate's FSDP2 reads",
        )
    return ()


def tool_config(config: TrialConfig, tool: str, measured: TrialConfig) -> tuple[TrialConfig, tuple[str, ...]]:
    """Configuration as a fine-tuning tool runs it, with activation offload switched off, and a note if it was measured
    with offload."""
    if not measured.activation_offload:
        return config, ()
    note = f"activation_offload: true was measured; {tool} has false here, and keeps blocks' inputs on the GPU"
    return config.model_copy(update={"activation_offload": False}), (note,)


def lightning_notes(source: ExportSource) -> tuple[str, ...]:
    """Notes on activation offload for Lightning, where the user's module has to apply it."""
    if not source.config.activation_offload:
        return ()
    return (f"activation_offload: apply it ({_WORDS}) in your module: see {source.shown_in}",)
