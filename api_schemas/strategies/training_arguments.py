"""A configuration as Hugging Face `TrainingArguments` (transformers 5), and what these have no words for."""

from typing import Any, NamedTuple

from api_schemas.strategies import DdpConfig, Fsdp2Config, TrialConfig, ZeroConfig
from api_schemas.workload import Workload


class Rendering(NamedTuple):
    """What a consumer can be told."""

    values: dict[str, Any]
    lossy: tuple[str, ...]
    """Each a knob's name, what was measured, and what the consumer does instead."""


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
    config: TrialConfig, workload: Workload, accumulation: int, block_class: str | None, on_cpu: bool
) -> Rendering:
    """Batch and strategy; without a block class Trainer asks the model for it. Activation checkpointing and compilation are in `block_arguments`."""
    values: dict[str, Any] = {
        "per_device_train_batch_size": config.micro_batch,
        "gradient_accumulation_steps": accumulation,
    }
    match config.strategy:
        case DdpConfig() as ddp:
            return _merged(values, _ddp(ddp, accumulation, on_cpu))
        case Fsdp2Config() as fsdp2:
            return _merged(values, _fsdp2(fsdp2, accumulation, block_class))
        case ZeroConfig() as zero:
            document = zero.to_deepspeed(workload, config.micro_batch, accumulation, "/path/on/nvme")
            return _merged(values, Rendering({"deepspeed": document}, ()))


def block_arguments(config: TrialConfig) -> Rendering:
    """Activation checkpointing and compilation, which the adapter applies to the blocks itself."""
    values: dict[str, Any] = {}
    lossy = []
    if config.activation_checkpointing == "full":
        values["gradient_checkpointing"] = True
        values["gradient_checkpointing_kwargs"] = {"use_reentrant": False}
    elif config.activation_checkpointing == "selective":
        lossy.append("activation_checkpointing: selective was measured; Trainer keeps everything")
    if config.compile:
        values["torch_compile"] = True
        lossy.append("compile: each block was compiled; Trainer compiles the whole model")
    return Rendering(values, tuple(lossy))


def _merged(values: dict[str, Any], rest: Rendering) -> Rendering:
    return Rendering({**values, **rest.values}, rest.lossy)


def _sync_each_batch() -> dict[str, Any]:
    return {"accelerator_config": {"gradient_accumulation_kwargs": {"sync_each_batch": True}}}


def _ddp(ddp: DdpConfig, accumulation: int, on_cpu: bool) -> Rendering:
    values: dict[str, Any] = {
        "ddp_bucket_cap_mb": ddp.bucket_cap_mb,
        "ddp_static_graph": ddp.static_graph,
        "ddp_broadcast_buffers": False,
        "ddp_find_unused_parameters": False,
    }
    if on_cpu:
        values["ddp_backend"] = "gloo"
    if ddp.grad_sync == "every" and accumulation > 1:
        values |= _sync_each_batch()
    lossy = ("gradient_as_bucket_view: true was measured; Trainer leaves it false",) * ddp.gradient_as_bucket_view
    return Rendering(values, lossy)


def _fsdp2(fsdp2: Fsdp2Config, accumulation: int, block_class: str | None) -> Rendering:
    values: dict[str, Any] = {
        "fsdp": True,
        "fsdp_config": {
            "version": 2,
            "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            **({"transformer_layer_cls_to_wrap": [block_class]} if block_class is not None else {}),
            "reshard_after_forward": bool(fsdp2.reshard_after_forward),
            "cpu_offload": fsdp2.cpu_offload,
            "cpu_ram_efficient_loading": True,
            "state_dict_type": "SHARDED_STATE_DICT",
        },
    }
    lossy = fsdp2.without_words(accumulation, "Trainer")
    if fsdp2.grad_sync == "every" and accumulation > 1:
        values |= _sync_each_batch()
    return Rendering(values, lossy)
