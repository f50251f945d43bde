"""Hugging Face `TrainingArguments` of transformers 5: a JSON file, and a snippet that makes them of it."""

import json
from typing import Any

from shardtune.api_schemas.strategies import DdpConfig, Fsdp2Config, TrialConfig, ZeroConfig
from shardtune.api_schemas.strategies.training_arguments import block_arguments, strategy_arguments, workload_arguments
from shardtune.tuner.export.rendered import Rendered, comment, differences
from shardtune.tuner.export.source import ExportSource
from shardtune.tuner.export.templates import fill

RELEASE = "transformers 5.23"


def render(source: ExportSource) -> Rendered:
    """`training_arguments.json` and `trainer_snippet.py`.

    Raises:
        ValueError: Trainer has no such backend.
    """
    config, workload = source.config, source.workload
    strategy = strategy_arguments(config, workload, source.accumulation, source.profile.block_class)
    values: dict[str, Any] = {
        **workload_arguments(workload, source.on_cpu),
        **strategy,
        **block_arguments(config),
    }
    done = _done(config, source.accumulation)
    lossy = (*differences(config, done, "Trainer"), *_numerics(source))
    by_hand = isinstance(config.strategy, DdpConfig) and config.strategy.gradient_as_bucket_view
    snippet = fill(
        "trainer_snippet.py",
        description=source.contender.description,
        release=RELEASE,
        lossy=comment(lossy, ""),
        by_hand="\n    trainer.accelerator.ddp_handler.gradient_as_bucket_view = True" if by_hand else "",
    )
    files = {"training_arguments.json": json.dumps(values, indent=2) + "\n", "trainer_snippet.py": snippet}
    return Rendered(files, RELEASE, lossy, done)


def _done(config: TrialConfig, accumulation: int) -> TrialConfig:
    """What Trainer does with the file."""
    strategy = config.strategy
    if isinstance(strategy, DdpConfig):
        strategy = strategy.model_copy(update={"gradient_as_bucket_view": False})
    elif isinstance(strategy, Fsdp2Config):
        strategy = strategy.as_accelerate_runs_it(accumulation)
    checkpointing = "none" if config.activation_checkpointing == "selective" else config.activation_checkpointing
    return config.model_copy(update={"strategy": strategy, "activation_checkpointing": checkpointing})


def _numerics(source: ExportSource) -> tuple[str, ...]:
    """Where Trainer trains something slightly else."""
    lines = ["weight_decay: on all parameters was measured; Trainer leaves biases and norms out"]
    strategy = source.config.strategy
    if source.config.compile:
        lines.append("compile: each block was compiled; Trainer compiles the whole model")
    if source.is_mixed and isinstance(strategy, DdpConfig):
        lines.append("recipe: norms and softmax in bfloat16 were measured; Trainer's autocast keeps them in float32")
    if source.is_mixed and isinstance(strategy, Fsdp2Config):
        lines.append("recipe: gradients reduced in float32 were measured; Accelerate reduces them in bfloat16")
    if isinstance(strategy, Fsdp2Config) and strategy.dp_replicate > 1:
        lines.append(
            "dp_replicate: set it by TrainingArguments(parallelism_config=ParallelismConfig(…)), see the snippet"
        )
    if source.on_cpu and isinstance(strategy, Fsdp2Config | ZeroConfig):
        lines.append(f"backend: on CPU ranks Trainer ignores {source.config.backend} without a word")
    return tuple(lines)
