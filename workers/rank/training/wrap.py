"""From a task to a trainer: build the model, apply checkpointing and compilation, hand it to the backend."""

from torch import nn

from shardtune.api_schemas.strategies import DdpConfig, Fsdp1Config, TrialConfig, ZeroConfig
from shardtune.workers.rank.model import build as models
from shardtune.workers.rank.model import checkpointing
from shardtune.workers.rank.strategies import base
from shardtune.workers.rank.strategies.ddp import DdpTrainer
from shardtune.workers.rank.strategies.fsdp1 import Fsdp1Trainer
from shardtune.workers.rank.strategies.fsdp2 import Fsdp2Trainer
from shardtune.workers.rank.strategies.zero import ZeroTrainer


def trainer(model: nn.Module, setting: base.Setting) -> base.Trainer:
    """Prepare the blocks and wrap the model for the configuration's backend.

    Raises:
        ValueError: the backend refuses the combination.
    """
    config = setting.task.config
    prepare_blocks(model, config)
    strategy = config.strategy
    if isinstance(strategy, DdpConfig):
        return DdpTrainer(model, setting, strategy)
    if isinstance(strategy, ZeroConfig):
        return ZeroTrainer(model, setting, strategy)
    if isinstance(strategy, Fsdp1Config):
        return Fsdp1Trainer(model, setting, strategy)
    return Fsdp2Trainer(model, setting, strategy)


def prepare_blocks(model: nn.Module, config: TrialConfig) -> None:
    """Checkpoint, then compile, each repeated block in place."""
    blocks = [block for _, block in models.repeated_blocks(model)]
    checkpointing.apply(blocks, config.activation_checkpointing)
    if config.compile:
        for block in blocks:
            block.compile()
