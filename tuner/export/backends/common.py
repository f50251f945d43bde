"""Lines of the exported training script that several backends share."""

from collections.abc import Sequence
from typing import Any

from shardtune.api_schemas.knobs import declarations
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.strategies.base import GradSync, StrategySchema
from shardtune.tuner.export import context
from shardtune.tuner.export.backends import activation_offload as offload
from shardtune.tuner.export.backends import memory_budget, mlp_slices
from shardtune.tuner.export.precision import loss_scale
from shardtune.tuner.export.source import ExportSource, torch_dtype
from shardtune.tuner.export.templates import fill, indent

CLIPPING = "MAX_GRAD_NORM"


def clipping(source: ExportSource) -> str:
    """Line of the exported script that defines the limit on the gradient norm."""
    limit = source.workload.max_grad_norm
    return f"{CLIPPING} = {limit}" if limit is not None else f'{CLIPPING} = float("inf")'


def prepare_blocks(source: ExportSource) -> list[str]:
    """Lines of the exported script that slice the MLP of each repeated block, checkpoint the block and compile it."""
    config, every = source.config, source.config.checkpoint_every
    lines = []
    if mlp_slices.are_used(source):
        # Inside of the checkpoints: each ends its repetition at an MLP's input.
        lines += ["for block in model.get_submodule(BLOCKS):", "    slice_mlp(block)"]
    if config.activation_checkpointing != "none":
        selected = f"[{every - 1} :: {every}]" if every > 1 else ""
        streams = offload.uses_streams(source)
        lines += ["inputs = HostInputs()"] if streams else []
        lines.append(f"for block in model.get_submodule(BLOCKS){selected}:")
        lines.append("    checkpointed(block, inputs)" if streams else "    checkpointed(block)")
    if config.compile:
        # Compiling is per block, checkpointing per every n-th block, so the loops differ where n is above 1.
        if every > 1 or not lines:
            lines += [*memory_budget.script_lines(source), "for block in model.get_submodule(BLOCKS):"]
        lines.append("    block.compile()")
    return lines


def uses_no_sync(source: ExportSource, sync: GradSync) -> bool:
    """Whether gradients are reduced only after the last of several micro batches of a step."""
    return sync == "last" and source.accumulation > 1


def forward_and_backward(source: ExportSource) -> list[str]:
    """Lines of the exported script for forward and backward of one micro batch."""
    loss = [context.loss(source, "self.model")]
    if source.autocasts:
        dtype = torch_dtype(source.workload.precision.compute_dtype)
        # PyTorch asks for autocast around forward alone.
        loss = [f"with torch.autocast(tokens.device.type, {dtype}):", f"    {loss[0]}"]
    return [*loss, loss_scale.backward(source)]


def backward(source: ExportSource, sync: GradSync) -> dict[str, str]:
    """Loop variable and loop body of the micro batches in the exported script, with `no_sync` where it is used."""
    lines = forward_and_backward(source)
    if not uses_no_sync(source, sync):
        return {"micro": "_", "backward": indent(lines, 12)}
    guard = "with contextlib.nullcontext() if micro == ACCUMULATION - 1 else self.model.no_sync():"
    return {"micro": "micro", "backward": indent([guard, *(f"    {line}" for line in lines)], 12)}


def import_of(module: str, names: Sequence[str]) -> str:
    """Line of Python source that imports names from a module."""
    return f"from {module} import {', '.join(sorted(names))}"


def reduces_every(source: ExportSource, sync: GradSync) -> bool:
    """Whether gradients are reduced after each of several micro batches of a step."""
    return sync == "every" and source.accumulation > 1


def autocast_differs(source: ExportSource, consumer: str) -> tuple[str, ...]:
    """Note that the program for which the trial is exported uses autocast as its mixed precision, while the trial
    itself cast the weights; empty where the trial used autocast, too."""
    if not source.casts_weights:
        return ()
    dtype = source.workload.precision.compute_dtype
    return (f"precision: norms and softmax in {dtype} were measured; {consumer}'s autocast keeps them in float32",)


def weights_differ(source: ExportSource, consumer: str) -> tuple[str, ...]:
    """Note that the program for which the trial is exported uses FSDP's mixed precision, while the trial itself used
    autocast; empty otherwise."""
    if not source.autocasts:
        return ()
    return (f"precision: float32 weights under autocast were measured; {consumer} has FSDP cast weights to bfloat16",)


def loaded_low(source: ExportSource) -> tuple[str, ...]:
    """Note with the dtype in which the user's script must load the model, if the whole training is in a dtype below
    float32; empty otherwise."""
    if not source.has_low_states:
        return ()
    dtype = torch_dtype(source.workload.precision.master_dtype)
    return (f"precision: load the model with dtype={dtype}: weights, gradients and optimizer states are in it",)


def accelerate_autocast(source: ExportSource) -> tuple[dict[str, Any], list[str]]:
    """Fields and script lines for Accelerate where the trial used FSDP with autocast: Accelerate's own mixed precision
    is off, and the script calls autocast."""
    if not source.autocasts:
        return {}, []
    line = "with torch.autocast(accelerator.device.type, torch.bfloat16) around model and loss: Accelerate's bf16 casts weights"
    return {"mixed_precision": "no"}, [line]


def not_on_cpu(source: ExportSource, consumer: str) -> tuple[str, ...]:
    """Note that the program for which the trial is exported shards only on GPUs, while the trial itself ran on CPU
    ranks; empty otherwise."""
    return (f"backend: {consumer} has no {source.config.backend} on CPU ranks",) if source.on_cpu else ()


def ignored_on_cpu(source: ExportSource) -> tuple[str, ...]:
    """Note that transformers' Trainer ignores the sharding backend on CPU ranks; empty for GPUs."""
    if not source.on_cpu:
        return ()
    return (f"backend: on CPU ranks Trainer ignores {source.config.backend} without a message",)


def accelerate_losses(source: ExportSource, config: TrialConfig | StrategySchema) -> list[str]:
    """Notes on knobs that Accelerate cannot express and whose measured value is not the default."""
    knobs = declarations.knobs_by_field(type(config))
    return [
        f"{name}={getattr(config, name)!r} cannot be expressed in Accelerate, which {reason}: see {source.shown_in}"
        for name, reason in declarations.reasons(config, "accelerate").items()
        if getattr(config, name) != knobs[name].default
    ]


def fsdp_checkpointing(source: ExportSource) -> dict[str, bool]:
    """Field of Accelerate's FSDP section, as a mapping, that sets activation checkpointing."""
    return {"fsdp_activation_checkpointing": source.config.checkpoints_whole_blocks}


def materialize() -> str:
    """Source of the function in the exported script that allocates parameters from the meta device and gives them
    values."""
    return fill("materialize")
