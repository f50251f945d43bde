"""Ranks in float16 whose gradients overflow where a test says so, on every backend."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from shardtune.workers.rank import main
from shardtune.workers.rank.strategies.base import Trainer, TrainingSetup
from shardtune.workers.rank.training.wrap import make_trainer
from tests.support.processes import preloaded_forks

FIRST_SCALE = 2.0**26
"""Loss scale at which a tiny model's gradients overflow float16: it takes about ten halvings to fit."""


def run_ranks(plant: str, folder: Path) -> None:
    """Two ranks of a trial directory, with something planted into their trainer."""
    preloaded_forks.ranks(_rank, plant, folder, logs=folder)


def _rank(plant: str, folder: Path) -> None:
    def make(model: nn.Module, setting: TrainingSetup) -> Trainer:
        trainer = make_trainer(model, setting)
        PLANTS[plant](trainer, setting.context.rank)
        return trainer

    main.run(folder, make)
    sys.stderr.flush()
    os._exit(0)


def _begin_at(scale: float) -> Callable[[Any, int], None]:
    def plant(trainer: Any, _rank: int) -> None:
        if hasattr(trainer, "_engine"):
            trainer._engine.optimizer.loss_scaler.cur_scale = scale
        else:
            trainer._loss_scale.scaler._init_scale = scale

    return plant


def _overflow(step: int, only_rank: int | None) -> Callable[[Any, int], None]:
    """Make the last parameter's gradient infinite in one call of the optimizer's step, on one rank or on all."""

    def plant(trainer: Any, rank: int) -> None:
        original, calls = trainer.optimizer_step, iter(range(10**6))

        def optimizer_step() -> Any:
            if next(calls) == step and only_rank in (None, rank):
                gradient = [p.grad for p in trainer._parameters if p.grad is not None and p.grad.numel()][-1]
                local = gradient.to_local() if isinstance(gradient, DTensor) else gradient
                local.view(-1)[-1:].fill_(torch.inf)
            return original()

        trainer.optimizer_step = optimizer_step

    return plant


PLANTS: dict[str, Callable[[Any, int], None]] = {
    "high scale": _begin_at(FIRST_SCALE),
    "higher scale": _begin_at(8 * FIRST_SCALE),
    "endless": _begin_at(2.0**100),
    "one rank": _overflow(1, only_rank=0),
    "in a traced step": _overflow(5, only_rank=None),
    "in a timed window": _overflow(6, only_rank=None),
}
