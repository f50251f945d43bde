"""A configuration as Hugging Face `TrainingArguments` (transformers 5); what these cannot say is left out.

Read by the adapter, which runs them, and by the exporter, which writes them.
"""

from typing import Any

from shardtune.api_schemas.strategies import DdpConfig, Fsdp2Config, TrialConfig, ZeroConfig
from shardtune.api_schemas.workload import Workload


def workload_arguments(workload: Workload, on_cpu: bool) -> dict[str, Any]:
    """What does not depend on the configuration."""
    optimizer = workload.optimizer
    return {
        "bf16": workload.recipe.compute_dtype == "bfloat16",
        "learning_rate": optimizer.lr,
        "adam_beta1": optimizer.beta1,
        "adam_beta2": optimizer.beta2,
        "adam_epsilon": optimizer.eps,
        "weight_decay": optimizer.weight_decay,
        "max_grad_norm": workload.max_grad_norm or 0.0,
        "optim": "adamw_torch_fused",
        "lr_scheduler_type": "constant",
        "seed": workload.seed,
        "use_cpu": on_cpu,
        "dataloader_pin_memory": not on_cpu,
    }


def strategy_arguments(
    config: TrialConfig, workload: Workload, accumulation: int, block_class: str | None
) -> dict[str, Any]:
    """Batch and strategy; without a block class Trainer asks the model for it.

    Raises:
        ValueError: Trainer has no such backend.
    """
    strategy = config.strategy
    values: dict[str, Any] = {
        "per_device_train_batch_size": config.micro_batch,
        "gradient_accumulation_steps": accumulation,
    }
    if strategy.sync_policy == "every" and accumulation > 1:
        values["accelerator_config"] = {"gradient_accumulation_kwargs": {"sync_each_batch": True}}
    if isinstance(strategy, DdpConfig):
        return values | _ddp(strategy)
    if isinstance(strategy, Fsdp2Config):
        return values | {"fsdp": True, "fsdp_config": _fsdp2(strategy, config, block_class)}
    if isinstance(strategy, ZeroConfig):
        values.pop("accelerator_config", None)
        return values | {
            "deepspeed": strategy.to_deepspeed(workload, config.micro_batch, accumulation, "/path/on/nvme")
        }
    raise ValueError(f"backend ({config.backend!r}) has no words in TrainingArguments; export another configuration")


def block_arguments(config: TrialConfig) -> dict[str, Any]:
    """Activation checkpointing and compilation, which the adapter applies to the blocks itself."""
    values: dict[str, Any] = {"torch_compile": True} if config.compile else {}
    if config.activation_checkpointing == "full" and not isinstance(config.strategy, Fsdp2Config):
        values["activation_checkpointing"] = True
        values["activation_checkpointing_kwargs"] = {"use_reentrant": False}
    return values


def _ddp(ddp: DdpConfig) -> dict[str, Any]:
    return {
        "ddp_bucket_cap_mb": ddp.bucket_cap_mb,
        "ddp_static_graph": ddp.static_graph,
        "ddp_broadcast_buffers": False,
        "ddp_find_unused_parameters": False,
    }


def _fsdp2(fsdp2: Fsdp2Config, config: TrialConfig, block_class: str | None) -> dict[str, Any]:
    """Trainer wants FSDP's own activation checkpointing, not Trainer's argument."""
    values = {
        "version": 2,
        "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "reshard_after_forward": bool(fsdp2.reshard_after_forward),
        "cpu_offload": fsdp2.cpu_offload,
        "cpu_ram_efficient_loading": True,
        "state_dict_type": "SHARDED_STATE_DICT",
        "activation_checkpointing": config.activation_checkpointing == "full",
    }
    return values | ({"transformer_layer_cls_to_wrap": [block_class]} if block_class is not None else {})
