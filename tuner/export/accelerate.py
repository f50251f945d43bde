"""`accelerate.yaml`: what Accelerate's configuration file can say of a configuration, and in comments what it cannot."""

from typing import Any

import yaml

from shardtune.api_schemas.strategies import DdpConfig, Fsdp1Config, Fsdp2Config, ZeroConfig
from shardtune.api_schemas.strategies.fsdp1 import HYBRID
from shardtune.tuner.export.source import ExportSource
from shardtune.tuner.export.templates import fill


def document(source: ExportSource) -> str:
    """The file's text."""
    strategy = source.config.strategy
    values: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "MULTI_CPU" if source.on_cpu else "MULTI_GPU",
        "use_cpu": source.on_cpu,
        "num_machines": source.cluster.nodes,
        "machine_rank": 0,
        "num_processes": source.cluster.world_size,
        "mixed_precision": "bf16" if source.workload.recipe.compute_dtype == "bfloat16" else "no",
        "main_training_function": "main",
        "rdzv_backend": "static",
        "same_network": True,
    }
    if isinstance(strategy, ZeroConfig):
        values["distributed_type"] = "DEEPSPEED"
        # With a file of its own, Accelerate refuses these words beside it.
        del values["mixed_precision"]
        values["deepspeed_config"] = {"deepspeed_config_file": "ds_config.json", "zero3_init_flag": strategy.stage == 3}
    elif isinstance(strategy, Fsdp1Config | Fsdp2Config):
        values["distributed_type"] = "FSDP"
        checkpointing = {"fsdp_activation_checkpointing": source.config.activation_checkpointing == "full"}
        values["fsdp_config"] = strategy.to_accelerate(source.profile.block_class) | checkpointing
        if isinstance(strategy, Fsdp2Config) and strategy.dp_replicate > 1:
            values["parallelism_config"] = {
                "parallelism_config_dp_replicate_size": strategy.dp_replicate,
                "parallelism_config_dp_shard_size": strategy.dp_shard,
            }
    comments = "\n".join(f"# {line}" for line in ["In your script:", *(f"- {line}" for line in _in_code(source))])
    return fill(
        "accelerate.yaml",
        description=source.contender.description,
        comments=comments,
        document=yaml.safe_dump(values, sort_keys=False).rstrip(),
    )


def _in_code(source: ExportSource) -> list[str]:
    """What must stand in the user's script for it to be what was measured."""
    strategy, accumulation = source.config.strategy, source.accumulation
    lines = [f"data loader batch size {source.config.micro_batch}, sequence length {source.workload.sequence_length}"]
    if not isinstance(strategy, ZeroConfig):
        lines.append(f"Accelerator(gradient_accumulation_steps={accumulation}), with accelerator.accumulate(model)")
        if source.workload.max_grad_norm is not None:
            lines.append(f"accelerator.clip_grad_norm_(model.parameters(), {source.workload.max_grad_norm})")
    if isinstance(strategy, DdpConfig):
        options = ", ".join(f"{key}={value}" for key, value in strategy.to_ddp().items())
        lines.append(f"kwargs_handlers=[DistributedDataParallelKwargs({options})]")
        if strategy.grad_sync == "every" and accumulation > 1:
            lines.append("no accelerator.accumulate: gradients were reduced after every micro batch")
        if source.is_mixed:
            lines.append(
                "Accelerate's autocast keeps norms and softmax in float32; the trial computed them in bfloat16"
            )
    if isinstance(strategy, Fsdp2Config):
        lines += _fsdp2_in_code(source, strategy)
    if isinstance(strategy, Fsdp1Config):
        lines += _fsdp1_in_code(source, strategy)
    if not isinstance(strategy, Fsdp1Config | Fsdp2Config) and source.config.activation_checkpointing == "full":
        lines.append("model.gradient_checkpointing_enable()")
    if source.config.activation_checkpointing == "selective":
        lines.append("selective checkpointing: take `policy` and `checkpointed` of train_snippet.py")
    if source.config.compile:
        lines.append("compile each block: see train_snippet.py")
    return lines


def _fsdp2_in_code(source: ExportSource, strategy: Fsdp2Config) -> list[str]:
    lines = []
    if source.is_mixed:
        lines.append(
            "FullyShardedDataParallelPlugin(fsdp_version=2, mixed_precision_policy=MixedPrecisionPolicy("
            "torch.bfloat16, torch.float32, torch.bfloat16)): Accelerate alone reduces gradients in bfloat16"
        )
    defaults = Fsdp2Config(dp_shard=strategy.dp_shard, dp_replicate=strategy.dp_replicate)
    for name in ("forward_prefetch", "backward_prefetch", "blocks_per_unit", "grad_sync"):
        if getattr(strategy, name) != getattr(defaults, name):
            lines.append(f"{name}={getattr(strategy, name)!r} has no word in Accelerate: see train_snippet.py")
    if not isinstance(strategy.reshard_after_forward, bool):
        lines.append(f"reshard_after_forward={strategy.reshard_after_forward} is true here, which Accelerate can say")
    return lines


def _fsdp1_in_code(source: ExportSource, strategy: Fsdp1Config) -> list[str]:
    lines = []
    if source.is_mixed:
        lines.append(
            "FullyShardedDataParallelPlugin(mixed_precision_policy=MixedPrecision(torch.bfloat16, torch.float32)): "
            "Accelerate alone reduces gradients and casts buffers in bfloat16"
        )
    if not strategy.limit_all_gathers:
        lines.append("FullyShardedDataParallelPlugin(limit_all_gathers=False)")
    if strategy.grad_sync == "every" and source.accumulation > 1:
        lines.append("no accelerator.accumulate: gradients were reduced after every micro batch")
    if strategy.sharding_strategy in HYBRID and strategy.dp_shard != source.cluster.gpus_per_node:
        lines.append(
            f"groups of {strategy.dp_shard} ranks shard here, Accelerate shards within a node: see train_snippet.py"
        )
    return lines
