"""Ranks whose strategy has a planted fault, to show that parity notices."""

import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

from shardtune.api_schemas.strategies import DdpConfig
from shardtune.workers.launch import RESUMES
from shardtune.workers.rank import main
from shardtune.workers.rank.strategies.base import Setting
from shardtune.workers.rank.strategies.ddp import DdpTrainer
from shardtune.workers.trial_dir import TrialDir
from tests.support import warm_forks


class WithoutAllReduce(DdpTrainer):
    """Every micro batch is taken for one that is not the last, so gradients never leave their rank."""

    def micro_step(self, batch: Any, last: bool) -> torch.Tensor:
        return super().micro_step(batch, last=False)


class ScaledTwice(DdpTrainer):
    """Divides the loss by the accumulation twice; Adam hides it, the gradient norm does not."""

    def __init__(self, model: nn.Module, setting: Setting, config: DdpConfig) -> None:
        super().__init__(model, setting, config)
        self._accumulation = self._accumulation**2


class ForgetsOptimizer(DdpTrainer):
    """Goes on with the right weights and moments of zero, as a job does that saves the model only."""

    def load(self, folder: Path) -> None:
        super().load(folder)
        self._optimizer.state.clear()


class ForgetsWeights(DdpTrainer):
    """Goes on with the right moments and the weights it began with."""

    def load(self, folder: Path) -> None:
        begun = [parameter.detach().clone() for parameter in self._parameters]
        super().load(folder)
        with torch.no_grad():
            for parameter, value in zip(self._parameters, begun, strict=True):
                parameter.copy_(value)


FAULTS = {
    "missing_all_reduce": WithoutAllReduce,
    "wrong_gradient_scale": ScaledTwice,
    "forgotten_optimizer": ForgetsOptimizer,
    "forgotten_weights": ForgetsWeights,
    "none": DdpTrainer,
}


def run_ranks(fault: str, folder: Path) -> None:
    """Both ranks of a trial directory; in one that has been run, they go on in it."""
    resumes = (folder / "rank_0.json").exists()
    if resumes:
        TrialDir(folder).begin_resume_phase()
    warm_forks.ranks(_rank, fault, folder, logs=folder, environment={RESUMES: "1"} if resumes else None)


def _rank(fault: str, folder: Path) -> None:
    main.run(folder, lambda model, setting: FAULTS[fault](model, setting, DdpConfig()))
    # As the warm host's ranks end: gloo has hung in what the interpreter winds down.
    sys.stderr.flush()
    os._exit(0)
