"""Ranks in which one place of the training holds far more than all others, to show that it is found."""

import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from shardtune.workers.rank import main
from shardtune.workers.rank.strategies.base import Trainer, TrainingSetup
from shardtune.workers.rank.training import wrap
from tests.support.processes import preloaded_forks

HOG_BYTES = 64 << 20


class Place(NamedTuple):
    """Place of a step that takes much memory: a module of a phase, or the optimizer."""

    phase: str
    module: str


class Hog(torch.autograd.Function):
    """Holds its bytes for a moment, in forward or in backward."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, phase: str) -> torch.Tensor:
        ctx.phase = phase
        _hold(phase == "forward")
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        _hold(ctx.phase == "backward")
        return gradients[0].clone(), None


class HogsInOptimizer:
    """A trainer whose optimizer holds it."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._trainer, name)

    def optimizer_step(self) -> torch.Tensor | float:
        _hold(True)
        return self._trainer.optimizer_step()


def run(place: Place, folder: Path) -> None:
    """Both ranks of a trial directory."""
    preloaded_forks.ranks(_rank, place, folder, logs=folder)


def _hold(here: bool) -> None:
    if here:
        torch.empty(HOG_BYTES, dtype=torch.uint8)


def _rank(place: Place, folder: Path) -> None:
    def trainer(model: nn.Module, setting: TrainingSetup) -> Trainer:
        if place.phase == "optimizer":
            return HogsInOptimizer(wrap.make_trainer(model, setting))  # type: ignore[return-value]
        module = model.get_submodule(place.module)
        own = module.forward

        def forward(*inputs: Any, **more: Any) -> Any:
            return Hog.apply(own(*inputs, **more), place.phase)

        module.forward = forward
        return wrap.make_trainer(model, setting)

    main.run(folder, trainer)
    # As the fork server's ranks end: gloo has hung in what the interpreter winds down.
    sys.stderr.flush()
    os._exit(0)
