"""Checks of a configuration against cluster, workload and model: parallel group sizes (context, tensor, pipeline and
expert parallel), the optimizer, the adapter and the samples' lengths."""

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import (
    Fsdp2Config,
    TrialConfig,
    adapter_support,
    context_parallel,
    expert_parallel,
    losses,
    optimizer_support,
    pipeline_parallel,
    pipeline_schedules,
    ragged_support,
    tensor_parallel,
)
from shardtune.api_schemas.strategies.fields import memory_budget, mlp_slices, selective_keeps
from shardtune.api_schemas.strategies.recipe_support import float8_support, fp16_support, lora_support
from shardtune.api_schemas.training import quantization
from shardtune.api_schemas.training.adapters import quantization_of
from shardtune.api_schemas.training.models import ModelSpec
from shardtune.api_schemas.training.workload import Workload


def check(config: TrialConfig, cluster: Cluster, workload: Workload, model: ModelSpec | None = None) -> None:
    """Reject a backend that cannot train with the workload's optimizer, adapter, lengths, float8, float16 or quantization.

    Also reject parallel group sizes that do not divide the workload or the model, as far as is known before the model is
    built.

    Raises:
        ValueError: names the field, its value and the remedy.
    """
    optimizer_support.check(config, workload.optimizer)
    adapter_support.check(config, workload.adapter)
    ragged_support.check(config, workload.data)
    float8_support.check(config, workload.float8)
    lora_support.check(config, workload.adapter)
    fp16_support.check(config, workload, model)
    quantization.check_precision(
        workload.precision.name, workload.precision.autocast, quantization_of(workload.adapter)
    )
    strategy, context = config.strategy, config.context_parallel
    stages = strategy.stages
    pipeline_parallel.check_ranks(stages, cluster.world_size)
    tensor_parallel.check(strategy.model_parallel // stages, context, cluster, workload, model, stages=stages)
    context_parallel.check(context, cluster, workload, model, split=strategy.model_parallel)
    expert_parallel.check_model(strategy.expert_ranks, model)
    losses.check(config.loss, model)
    mlp_slices.check_training(config.mlp_slices, config.backend, model, workload.float8, workload.adapter)
    memory_budget.check_training(config.activation_memory_budget, model, workload.float8, workload.adapter)
    selective_keeps.check_training(config.selective_keeps, model, workload.attention, workload.float8, workload.adapter)
    if isinstance(strategy, Fsdp2Config):
        expert_parallel.check(strategy.expert_parallel, strategy.dp_shard, strategy.tensor_parallel)
    if stages > 1:
        micro_batches = config.accumulation(workload.global_batch, cluster.world_size)
        pipeline_parallel.check(stages, micro_batches, model)
        if isinstance(strategy, Fsdp2Config):
            pipeline_schedules.check_micro_batches(strategy.pipeline_schedule, stages, micro_batches)


def check_experts(config: TrialConfig, experts: int | None, width: int | None, note: str | None) -> None:
    """Reject an `expert_parallel` size that cannot divide the model's experts, according to the summary of the model
    (`experts`, `expert_width`, `expert_note`). Also reject MLPs in slices and a budget of activations for a model with
    experts.

    Raises:
        ValueError: names the field, its value and the remedy.
    """
    strategy = config.strategy
    if config.mlp_slices > 1 and (experts or 1) > 1:
        raise mlp_slices.rejected(config.mlp_slices, mlp_slices.EXPERTS)
    if config.activation_memory_budget < 1 and (experts or 1) > 1:
        raise memory_budget.rejected(config.activation_memory_budget, memory_budget.EXPERTS)
    if isinstance(strategy, Fsdp2Config):
        expert_parallel.check_experts(strategy.expert_parallel, strategy.dp_shard, experts, width, note)
