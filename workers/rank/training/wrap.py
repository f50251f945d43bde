"""Wrapping of a model into a trainer: activation checkpointing and compilation of the model's blocks, then the
backend's sharding."""

from torch import nn

from shardtune.api_schemas.strategies import Fsdp2Config, adapter_support, optimizer_support, ragged_support
from shardtune.api_schemas.strategies.fields import memory_budget, mlp_slices, selective_keeps
from shardtune.api_schemas.strategies.recipe_support import float8_support, fp16_support, lora_support
from shardtune.api_schemas.training.adapters import quantization_of
from shardtune.api_schemas.training.quantization import check_precision
from shardtune.api_schemas.trials.leases import TrialTask
from shardtune.workers.blocks.prepare import prepare_blocks, repeated_blocks
from shardtune.workers.rank.model import build, float8, moe
from shardtune.workers.rank.model.quantization import check as quantised
from shardtune.workers.rank.strategies import base
from shardtune.workers.rank.strategies.registry import TRAINERS
from shardtune.workers.rank.training import packed_leak
from shardtune.workers.rank.training.offload_check import OffloadingTrainer


def make_trainer(model: nn.Module, setting: base.TrainingSetup) -> base.Trainer:
    """Prepare the blocks and wrap the model for the backend of the configuration.

    Raises:
        ValueError: the backend rejects the configuration.
        NumericsError: linear layers would train without the float8 or the 4-bit base weights that the study asks for.
    """
    task = setting.task
    optimizer_support.check(task.config, task.workload.optimizer)
    adapter_support.check(task.config, task.workload.adapter)
    ragged_support.check(task.config, task.workload.data)
    float8_support.check(task.config, task.workload.float8)
    lora_support.check(task.config, task.workload.adapter)
    fp16_support.check(task.config, task.workload)
    mlp_slices.check_training(
        task.config.mlp_slices, task.config.backend, task.model, task.workload.float8, task.workload.adapter
    )
    _check_memory_budget(model, task)
    _check_selective_keeps(model, task)
    precision = task.workload.precision
    check_precision(precision.name, precision.autocast, quantization_of(task.workload.adapter))
    task.config.strategy.check_cluster(task.cluster, task.workload.precision, setting.accumulation)
    packed_leak.check(task.model, task.workload, setting.context.device)
    recipe, blocks = task.workload.float8, [block for _, block in repeated_blocks(model)]
    linear_layers = float8.convert(blocks, recipe, setting.context.device, _gather_shards(task))
    inputs = prepare_blocks(model, task.config)
    trainer = TRAINERS[task.config.backend](model, setting, task.config.strategy)
    float8.require_converted(model, recipe, linear_layers)
    quantised.require_packed(blocks, task.workload.adapter)
    return trainer if inputs is None else OffloadingTrainer(trainer, inputs)


def _gather_shards(task: TrialTask) -> int:
    """Number of ranks from which weights are gathered in float8; 0 if they are not."""
    strategy = task.config.strategy
    return strategy.dp_shard if isinstance(strategy, Fsdp2Config) and strategy.float8_gather else 0


def _check_memory_budget(model: nn.Module, task: TrialTask) -> None:
    """Reject a budget of activations for a training with which it was not compared, or for blocks with experts: the
    service knows the experts of some models only.

    Raises:
        ValueError: names the field, its value and the remedy.
    """
    budget = task.config.activation_memory_budget
    memory_budget.check_training(budget, task.model, task.workload.float8, task.workload.adapter)
    if budget < 1 and moe.expert_modules(model):
        raise memory_budget.rejected(budget, memory_budget.EXPERTS)


def _check_selective_keeps(model: nn.Module, task: TrialTask) -> None:
    """Reject a choice of kept results that has no meaning for the training. The search leaves it out once a worker has
    built the model; a configuration of the user may have it.

    Raises:
        ValueError: names the field, its value and the remedy.
    """
    keeps, workload = task.config.selective_keeps, task.workload
    selective_keeps.check_training(keeps, task.model, workload.attention, workload.float8, workload.adapter)
    if keeps == "attention" and build.attention_of(model.config, workload) != "sdpa":
        raise selective_keeps.rejected(keeps, "transformers has no fused attention for its architecture")
