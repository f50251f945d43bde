"""From a task to a trainer: build the model, apply checkpointing and compilation, hand it to the backend."""

from torch import nn

from shardtune.api_schemas.strategies import TrialConfig
from shardtune.workers.rank.model import build as models
from shardtune.workers.rank.model import checkpointing
from shardtune.workers.rank.strategies import base
from shardtune.workers.rank.strategies.registry import TRAINERS


def trainer(model: nn.Module, setting: base.Setting) -> base.Trainer:
    """Prepare the blocks and wrap the model for the configuration's backend.

    Raises:
        ValueError: the backend refuses the combination.
    """
    task = setting.task
    task.config.strategy.check_cluster(task.cluster, task.workload.recipe, setting.accumulation)
    prepare_blocks(model, task.config)
    return TRAINERS[task.config.backend](model, setting, task.config.strategy)


def prepare_blocks(model: nn.Module, config: TrialConfig) -> None:
    """Checkpoint, then compile, each repeated block in place."""
    blocks = [block for _, block in models.repeated_blocks(model)]
    checkpointing.apply(blocks, config.activation_checkpointing, config.checkpoint_every)
    if config.compile:
        for block in blocks:
            block.compile()
