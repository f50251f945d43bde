"""Express a configuration as Hugging Face `TrainingArguments` (transformers 5), for the adapter of training scripts and
for exports; settings that `TrainingArguments` cannot express are omitted."""

from typing import Any

from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.strategies.base import TrainerStep
from shardtune.api_schemas.training.workload import Workload


def workload_arguments(workload: Workload, on_cpu: bool) -> dict[str, Any]:
    """Return those fields of Hugging Face `TrainingArguments` that depend only on the workload, not on the
    configuration."""
    return {
        # Trainer's bf16 is mixed precision; a model that is loaded in bfloat16 trains in it throughout without.
        "bf16": workload.precision.mixes_bfloat16,
        **({"fp16": True} if workload.precision.scales_loss else {}),
        **workload.optimizer.to_training_arguments(),
        "max_grad_norm": workload.max_grad_norm or 0.0,
        "lr_scheduler_type": "constant",
        "seed": workload.seed,
        "use_cpu": on_cpu,
        "dataloader_pin_memory": not on_cpu,
    }


def strategy_arguments(
    config: TrialConfig, workload: Workload, accumulation: int, block_class: str | None, checkpoints: bool = False
) -> dict[str, Any]:
    """Return the fields of Hugging Face `TrainingArguments` for batch size and strategy. `checkpoints` says whether to
    include `full` activation checkpointing; it is left out if the adapter for training scripts applies checkpointing
    itself.

    Raises:
        ValueError: Hugging Face's Trainer does not support the backend.
    """
    offloads = checkpoints and config.activation_offload
    step = TrainerStep(workload, config.micro_batch, accumulation, checkpoints, block_class, offloads)
    own = config.strategy.to_training_arguments(step)
    if own is None:
        raise ValueError(
            f"backend ({config.backend!r}) has no words in TrainingArguments; export another configuration"
        )
    return {
        "per_device_train_batch_size": config.micro_batch,
        "gradient_accumulation_steps": accumulation,
        **own,
    }
