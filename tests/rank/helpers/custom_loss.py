"""Ranks that train one micro batch of each backend with a loss of their own; to be called in forks."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

from shardtune.workers.rank import mesh
from shardtune.workers.rank.device import CpuDevice
from shardtune.workers.rank.model import data
from shardtune.workers.rank.rank_context import RankContext
from shardtune.workers.rank.strategies.base import TrainingSetup, causal_loss
from shardtune.workers.rank.training import step as steps
from shardtune.workers.rank.training import wrap
from tests.support.ranks.tiny_tasks import tiny_task

FACTOR = 3.0


def own_loss(model: nn.Module, batch: Any) -> torch.Tensor:
    """Another than a backend would think of by itself."""
    return FACTOR * causal_loss(model, batch)


def print_losses(strategies: dict[str, dict[str, Any]], folder: Path) -> None:
    """Print the losses of each strategy as JSON, with the step's loss and with a custom one."""
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    place = RankContext(rank, rank, 2, 2, CpuDevice())
    mesh.join(place, folder)
    losses = {}
    for name, strategy in strategies.items():
        task = tiny_task(strategy)
        losses[name] = [_loss(task, place, loss) for loss in (causal_loss, own_loss)]
    sys.stdout.write(json.dumps(losses) + "\n")
    sys.stdout.flush()
    # As the fork server's ranks end: gloo has hung in what the interpreter winds down.
    os._exit(0)


def _loss(task: Any, place: RankContext, loss: Any) -> float:
    step = steps.of(task.model, task.workload)
    setting = TrainingSetup.of(task, place, loss)
    trainer = wrap.make_trainer(step.build_model(), setting)
    samples = data.micro_batch_indices(place.rank, task.config.micro_batch, setting.accumulation, 0)
    value = float(trainer.micro_step(step.make_batch(0, samples, place.device), last=True))
    trainer.close()
    return value
