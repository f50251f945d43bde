"""Preparation of a model's repeated blocks: activation checkpointing and compilation as the configuration specifies."""

from torch import nn

from shardtune.api_schemas.strategies import TrialConfig
from shardtune.workers.blocks import checkpointing


def prepare_blocks(model: nn.Module, config: TrialConfig) -> None:
    """Apply activation checkpointing, then compilation, to each repeated block of a model, in place."""
    blocks = [block for _, block in repeated_blocks(model)]
    checkpointing.apply(blocks, config.activation_checkpointing, config.checkpoint_every)
    if config.compile:
        for block in blocks:
            block.compile()


def repeated_blocks(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Repeated blocks (decoder layers) of a model with their dotted names: the largest list of modules of one class;
    empty if there is none."""
    best: list[tuple[str, nn.Module]] = []
    size = 0
    for name, module in model.named_modules():
        if not isinstance(module, nn.ModuleList) or len({type(child) for child in module}) != 1:
            continue
        elements = sum(parameter.numel() for parameter in module.parameters())
        if elements > size:
            size, best = elements, [(f"{name}.{key}", child) for key, child in module.named_children()]
    return best
