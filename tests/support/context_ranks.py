"""Ranks that train several tiny trials one after the other, some with a planted fault; to be called in forks."""

import json
import os
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from shardtune.api_schemas.leases import TrialTask
from shardtune.workers.rank import mesh
from shardtune.workers.rank.device import CpuDevice
from shardtune.workers.rank.model import context
from shardtune.workers.rank.model.context import ContextGroup
from shardtune.workers.rank.place import Place
from shardtune.workers.rank.strategies.base import Setting
from shardtune.workers.rank.training import step as steps
from shardtune.workers.rank.training import wrap
from shardtune.workers.rank.training.loop import run_all
from shardtune.workers.rank.training.restart import RestartLoop
from shardtune.workers.rank.trial_dir import ProgressFile


@dataclass(frozen=True)
class WithoutFactor(ContextGroup):
    """The loss of a part counts as if nobody else had the rest of the samples."""

    def loss(self, model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
        return super().loss(model, tokens) / self.mesh.size()


def print_trajectories(tasks: dict[str, tuple[str, bool]], folder: Path) -> None:
    """Of each task (as JSON, and whether the fault is planted) by name, its first steps as JSON; none where it fails."""
    torch.set_num_threads(1)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    place = Place(rank, rank, world, world, CpuDevice())
    mesh.join(place, folder)
    found = {}
    for name, (text, faulty) in tasks.items():
        try:
            records = _trained(TrialTask.model_validate_json(text), place, folder, faulty).outcome.trajectory
        except Exception:  # noqa: BLE001 -- of the model's own code, on all ranks alike: the others are still trained
            traceback.print_exc()
            records = []
        found[name] = [record.model_dump(mode="json") for record in records]
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()
    # As the warm host's ranks end: gloo has hung in what the interpreter winds down.
    os._exit(0)


def _trained(task: TrialTask, place: Place, folder: Path, faulty: bool) -> RestartLoop:
    group = context.group_of(task, place)
    if group is not None and faulty:
        group = WithoutFactor(group.mesh)
    step = steps.of(task.model, task.workload, group)
    setting = Setting.of(task, place, step.loss)
    trainer = wrap.trainer(step.build_model(), setting)
    loop = RestartLoop(trainer.parameter_checksum, setting, step, ProgressFile(folder, place.rank))
    run_all(loop.record(task.plan.parity_steps), trainer)
    trainer.close()
    return loop
