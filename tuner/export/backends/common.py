"""Lines of the training script that several backends have."""

from collections.abc import Sequence
from typing import Any

from shardtune.api_schemas.strategies.base import GradSync
from shardtune.tuner.export import context
from shardtune.tuner.export.source import ExportSource, torch_dtype
from shardtune.tuner.export.templates import fill, indent

CLIPPING = "MAX_GRAD_NORM"


def clipping(source: ExportSource) -> str:
    """The constant of the gradient norm."""
    limit = source.workload.max_grad_norm
    return f"{CLIPPING} = {limit}" if limit is not None else f'{CLIPPING} = float("inf")'


def prepare_blocks(source: ExportSource) -> list[str]:
    """Checkpoint and compile each repeated block."""
    config, every = source.config, source.config.checkpoint_every
    lines = []
    if config.activation_checkpointing != "none":
        some = f"[{every - 1} :: {every}]" if every > 1 else ""
        lines += [f"for block in model.get_submodule(BLOCKS){some}:", "    checkpointed(block)"]
    if config.compile:
        if every > 1 or not lines:
            lines.append("for block in model.get_submodule(BLOCKS):")
        lines.append("    block.compile()")
    return lines


def uses_no_sync(source: ExportSource, sync: GradSync) -> bool:
    """Reduces only after the last of several micro batches."""
    return sync == "last" and source.accumulation > 1


def forward_and_backward(source: ExportSource) -> list[str]:
    """Of one micro batch; autocast is for forward alone, as PyTorch asks for."""
    loss = [context.loss(source, "self.model")]
    if source.autocasts:
        dtype = torch_dtype(source.workload.precision.compute_dtype)
        loss = [f"with torch.autocast(tokens.device.type, {dtype}):", f"    {loss[0]}"]
    return [*loss, "(loss / ACCUMULATION).backward()"]


def backward(source: ExportSource, sync: GradSync) -> dict[str, str]:
    """The loop's variable and its body, with `no_sync` where it is used."""
    lines = forward_and_backward(source)
    if not uses_no_sync(source, sync):
        return {"micro": "_", "backward": indent(lines, 12)}
    guard = "with contextlib.nullcontext() if micro == ACCUMULATION - 1 else self.model.no_sync():"
    return {"micro": "micro", "backward": indent([guard, *(f"    {line}" for line in lines)], 12)}


def import_of(module: str, names: Sequence[str]) -> str:
    """One line."""
    return f"from {module} import {', '.join(sorted(names))}"


def reduces_every(source: ExportSource, sync: GradSync) -> bool:
    """Reduces after each of several micro batches."""
    return sync == "every" and source.accumulation > 1


def autocast_differs(source: ExportSource, consumer: str) -> tuple[str, ...]:
    """Consumers whose mixed precision is autocast, where weights were cast."""
    if not source.casts_weights:
        return ()
    return (f"precision: norms and softmax in bfloat16 were measured; {consumer}'s autocast keeps them in float32",)


def weights_differ(source: ExportSource, consumer: str) -> tuple[str, ...]:
    """Consumers whose mixed precision is FSDP's own, where autocast was measured."""
    if not source.autocasts:
        return ()
    return (f"precision: float32 weights under autocast were measured; {consumer} has FSDP cast weights to bfloat16",)


def accelerate_autocast(source: ExportSource) -> tuple[dict[str, Any], list[str]]:
    """FSDP in Accelerate: its own mixed precision off, and autocast in the script."""
    if not source.autocasts:
        return {}, []
    line = "with torch.autocast(accelerator.device.type, torch.bfloat16) around model and loss: Accelerate's bf16 casts weights"
    return {"mixed_precision": "no"}, [line]


def not_on_cpu(source: ExportSource, consumer: str) -> tuple[str, ...]:
    """Consumers that shard on GPUs only."""
    return (f"backend: {consumer} has no {source.config.backend} on CPU ranks",) if source.on_cpu else ()


def ignored_on_cpu(source: ExportSource) -> tuple[str, ...]:
    """Trainer trains whole replicas there."""
    if not source.on_cpu:
        return ()
    return (f"backend: on CPU ranks Trainer ignores {source.config.backend} without a word",)


def fsdp_checkpointing(source: ExportSource) -> dict[str, bool]:
    """Accelerate's word for it in the section of FSDP."""
    return {"fsdp_activation_checkpointing": source.config.checkpoints_whole_blocks}


def materialize() -> str:
    """The helper that gives parameters on the meta device their values."""
    return fill("materialize")
