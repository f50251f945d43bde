"""Preparation of a model's repeated blocks: MLPs over slices of the tokens, activation checkpointing, offload of the
checkpointed blocks' inputs and compilation as the configuration specifies."""

import torch
from torch import nn

from shardtune.api_schemas.strategies import TrialConfig
from shardtune.workers.blocks import checkpointing, memory_budget, mlp_slices
from shardtune.workers.blocks.host_inputs import HostInputs


def prepare_blocks(model: nn.Module, config: TrialConfig, backend: str = "inductor") -> HostInputs | None:
    """Prepare each repeated block of a model in place: apply MLP slices and activation checkpointing, then compile it
    by a backend of `torch.compile`.

    Returns the object that moves the blocks' inputs to host memory and counts the bytes; None if the inputs stay on the
    device.

    Raises:
        ValueError: the blocks' MLPs cannot be computed in slices.
    """
    blocks = [block for _, block in repeated_blocks(model)]
    if config.mlp_slices > 1:
        # Inside of the checkpoint, which then restores an MLP's input and leaves the rest to the slices.
        mlp_slices.slice_mlps(blocks, config.mlp_slices)
    checkpointed = checkpointing.apply(
        blocks, config.activation_checkpointing, config.checkpoint_every, config.selective_keeps
    )
    inputs = HostInputs() if config.activation_offload else None
    if inputs is not None:
        # After the checkpoint, so that the offload is around it.
        for block in checkpointed:
            inputs.offload(block)
    if config.compile:
        forbid_eager_blocks()
        # One for all blocks: Dynamo compiles a block anew for another backend.
        compiler = memory_budget.compiler(config.activation_memory_budget, backend)
        for block in blocks:
            block.compile(backend=compiler)
    return inputs


def forbid_eager_blocks() -> None:
    """Make Dynamo raise an error instead of running further blocks uncompiled. By default it does the latter silently
    after eight recompilations of one function (torch 2.13, `recompile_limit`), and the trial would count as
    compiled."""
    # torch imports Dynamo at this first use: it takes a second, which a trial without compilation need not spend.
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    # ZeRO-3's hooks run inside the blocks. Dynamo would compile the hooks too, anew for each module and dtype until their
    # limit (DeepSpeed 0.19.8, `instrument_w_nvtx`), and a trial would be rejected for code that is no block.
    torch._dynamo.trace_rules.add("deepspeed")


def repeated_blocks(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Repeated blocks (decoder layers) of a model with their dotted names. They are the members of its largest list of
    modules of one class; empty if it has no such list."""
    best: list[tuple[str, nn.Module]] = []
    size = 0
    for name, module in model.named_modules():
        if not isinstance(module, nn.ModuleList) or len({type(child) for child in module}) != 1:
            continue
        elements = sum(parameter.numel() for parameter in module.parameters())
        if elements > size:
            size, best = elements, [(f"{name}.{key}", child) for key, child in module.named_children()]
    return best
