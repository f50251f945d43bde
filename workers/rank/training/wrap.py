"""Wrapping of a model into a trainer: activation checkpointing and compilation of the model's blocks, then the
backend's sharding."""

from torch import nn

from shardtune.api_schemas.strategies import adapter_support, optimizer_support, ragged_support
from shardtune.api_schemas.strategies.recipe_support import float8_support
from shardtune.workers.blocks.prepare import prepare_blocks, repeated_blocks
from shardtune.workers.rank.model import float8
from shardtune.workers.rank.strategies import base
from shardtune.workers.rank.strategies.registry import TRAINERS
from shardtune.workers.rank.training import packed_leak
from shardtune.workers.rank.training.offload_check import OffloadingTrainer


def make_trainer(model: nn.Module, setting: base.TrainingSetup) -> base.Trainer:
    """Prepare the blocks and wrap the model for the configuration's backend.

    Raises:
        ValueError: the backend rejects the combination.
        NumericsError: linear layers would train without the workload's float8.
    """
    task = setting.task
    optimizer_support.check(task.config, task.workload.optimizer)
    adapter_support.check(task.config, task.workload.adapter)
    ragged_support.check(task.config, task.workload.data)
    float8_support.check(task.config, task.workload.float8)
    task.config.strategy.check_cluster(task.cluster, task.workload.precision, setting.accumulation)
    packed_leak.check(task.model, task.workload, setting.context.device)
    recipe = task.workload.float8
    linear_layers = float8.convert([block for _, block in repeated_blocks(model)], recipe, setting.context.device)
    inputs = prepare_blocks(model, task.config)
    trainer = TRAINERS[task.config.backend](model, setting, task.config.strategy)
    float8.require_converted(model, recipe, linear_layers)
    return trainer if inputs is None else OffloadingTrainer(trainer, inputs)
