"""Adapter for Hugging Face's `Trainer` as a trial: training arguments from the configuration, and reports of its
steps."""

from typing import Any

import torch
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from shardtune.api_schemas.strategies import DdpConfig, Fsdp2Config
from shardtune.api_schemas.strategies.training_arguments import strategy_arguments, workload_arguments
from shardtune.api_schemas.training.search_space import Backend
from shardtune.workers.adapter import trainer_arguments
from shardtune.workers.adapter.trial import ScriptTrial

# At import: a script that repeats an argument would otherwise fail only once ranks run and the model is built.
trainer_arguments.check_importer()


def backends() -> tuple[Backend, ...]:
    """Backends whose settings `training_arguments` can express on this machine. Pass them to
    `adapter.configuration(backends=…)`."""
    return ("ddp", "zero", "fsdp2") if torch.cuda.is_available() else ("ddp",)


def training_arguments(trial: ScriptTrial) -> dict[str, Any]:
    """Keyword arguments for `TrainingArguments(**…)`. They contain neither activation checkpointing nor compilation,
    which `attach` applies.

    Raises:
        Rejected: Trainer cannot apply the configuration on this machine.
    """
    trial.require_ddp_on_cpu("Trainer")
    if not trial.workload.optimizer.in_trainer:
        title = trial.workload.optimizer.title
        trial.reject(f"workload.optimizer ({title}) has no name in TrainingArguments; use adamw, or a loop of your own")
    on_cpu = trial.device.type == "cpu"
    values = strategy_arguments(trial.config, trial.workload, trial.accumulation, None)
    strategy = trial.config.strategy
    if isinstance(strategy, Fsdp2Config) and strategy.as_accelerate_runs_it(trial.accumulation) != strategy:
        trial.reject(
            "Accelerate has no options for prefetch depth, blocks per unit, groups of resharding or reduce_scatter"
        )
    return {**workload_arguments(trial.workload, on_cpu), **values}


def attach(trainer: Trainer, trial: ScriptTrial) -> None:
    """Report every optimizer step of Hugging Face's `Trainer` to the trial. Call this before `trainer.train()`."""
    trial.prepare(trainer.model)
    strategy = trial.config.strategy
    if isinstance(strategy, DdpConfig):
        trainer.accelerator.ddp_handler.gradient_as_bucket_view = strategy.gradient_as_bucket_view
    losses: list[torch.Tensor] = []
    # Trainer's callbacks get only a smoothed loss, rounded for the log; the step method returns the real one.
    train_micro_batch = trainer.training_step

    def training_step(*args: Any, **kwargs: Any) -> torch.Tensor:
        loss: torch.Tensor = train_micro_batch(*args, **kwargs)
        losses.append(loss.detach())
        return loss

    trainer.training_step = training_step
    trainer.add_callback(_Report(trial, losses))


class _Report(TrainerCallback):  # type: ignore[misc]
    def __init__(self, trial: ScriptTrial, losses: list[torch.Tensor]) -> None:
        self._trial, self._losses = trial, losses

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        # A sum: Trainer has divided each loss by the number of micro batches, or of the step's tokens.
        loss = torch.stack(self._losses).sum()
        self._losses.clear()
        self._trial.report(loss, step=state.global_step)
