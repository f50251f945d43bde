"""Ranks that train several tiny trials one after the other, some with a planted fault; to be called in forks."""

import contextlib
import json
import os
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from shardtune.api_schemas.trials.leases import TrialTask
from shardtune.api_schemas.trials.measurements import StepRecord
from shardtune.workers.rank import mesh
from shardtune.workers.rank.device import CpuDevice
from shardtune.workers.rank.model import context, tensor_plan
from shardtune.workers.rank.model.chunked_loss import ChunkedLoss
from shardtune.workers.rank.model.context import ContextGroup
from shardtune.workers.rank.model.tensor_styles import Replicated
from shardtune.workers.rank.rank_context import RankContext
from shardtune.workers.rank.strategies import pipeline
from shardtune.workers.rank.strategies.base import TrainingSetup
from shardtune.workers.rank.strategies.expert_mesh import DividedExperts
from shardtune.workers.rank.training import step as steps
from shardtune.workers.rank.training import wrap
from shardtune.workers.rank.training.resume_check import ResumeLoop
from shardtune.workers.rank.training.step_runs import run_steps
from shardtune.workers.rank.trial_dir import ProgressFile
from tests.support.processes import preloaded_forks
from tests.support.ranks.reference_training import circumstances, deviation, train

FP32 = {"loss": 1e-5, "grad_norm": 1e-4, "parameter_sum": 1e-6, "parameter_square_sum": 1e-6}
BF16 = {"loss": 5e-4, "grad_norm": 3e-2, "parameter_sum": 5e-4, "parameter_square_sum": 1e-4}
FAULT = "with the fault"
"""Mark in a task's name: a fault is planted."""


def trajectories(tasks: dict[str, TrialTask], folder: Path, ranks: int = 2) -> dict[str, tuple[StepRecord, ...]]:
    """Trajectories of tasks by name, all trained by the same ranks; `FAULT` in a name plants it."""
    tasks_by_name = {name: (task.model_dump_json(), FAULT in name) for name, task in tasks.items()}
    printed = preloaded_forks.ranks(print_trajectories, tasks_by_name, folder, logs=folder, count=ranks)
    records_by_name = json.loads(printed[0].splitlines()[-1])
    return {
        name: tuple(StepRecord.model_validate(record) for record in records)
        for name, records in records_by_name.items()
    }


def assert_same(trajectory: tuple[StepRecord, ...], task: TrialTask, bound: dict[str, float]) -> None:
    apart = deviation(trajectory, train(task))
    assert all(apart[name] <= bound[name] for name in bound), (apart, circumstances(task))
    limit = task.workload.max_grad_norm
    assert limit is not None and all(record.grad_norm and record.grad_norm > limit for record in trajectory), "it clips"


@dataclass(frozen=True)
class WithoutFactor(ContextGroup):
    """The loss of a part counts as if nobody else had the rest of the samples."""

    def loss(self, model: nn.Module, tokens: torch.Tensor, chunked: ChunkedLoss | None = None) -> torch.Tensor:
        return super().loss(model, tokens, chunked) / self.mesh.size()


@contextlib.contextmanager
def unsummed_norms() -> Iterator[None]:
    """Plant a fault: each tensor-parallel rank keeps the gradient of norms that its own positions gave."""
    summed = tensor_plan.SequenceParallel
    tensor_plan.SequenceParallel = lambda **_: Replicated()  # type: ignore[assignment, misc]
    try:
        yield
    finally:
        tensor_plan.SequenceParallel = summed  # type: ignore[misc]


@contextlib.contextmanager
def unsummed_twins() -> Iterator[None]:
    """Plant a fault: the stages that have a tied table each keep the gradient that their own use of it gave."""
    summed = pipeline.Pipeline.sum_twins
    pipeline.Pipeline.sum_twins = lambda *_: None  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        pipeline.Pipeline.sum_twins = summed  # type: ignore[method-assign]


@contextlib.contextmanager
def undivided_experts() -> Iterator[None]:
    """Plant a fault: an expert's gradient counts the tokens of the ranks that divide experts as if each were one of
    several means."""
    average = DividedExperts.average
    DividedExperts.average = lambda _: None  # type: ignore[method-assign]
    try:
        yield
    finally:
        DividedExperts.average = average  # type: ignore[method-assign]


def print_trajectories(tasks: dict[str, tuple[str, bool]], folder: Path) -> None:
    """Print the first steps of each task as JSON by name, none where it fails; a task is JSON and whether the fault is
    planted."""
    torch.set_num_threads(1)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    place = RankContext(rank, rank, world, world, CpuDevice())
    mesh.join(place, folder)
    trajectories_by_name = {}
    for name, (text, faulty) in tasks.items():
        try:
            records = _trained(TrialTask.model_validate_json(text), place, folder, faulty).outcome.trajectory
        except Exception:  # noqa: BLE001 -- of the model's own code, on all ranks alike: the others are still trained
            traceback.print_exc()
            records = []
        trajectories_by_name[name] = [record.model_dump(mode="json") for record in records]
    sys.stdout.write(json.dumps(trajectories_by_name) + "\n")
    sys.stdout.flush()
    # As the fork server's ranks end: gloo has hung in what the interpreter winds down.
    os._exit(0)


def _trained(task: TrialTask, place: RankContext, folder: Path, faulty: bool) -> ResumeLoop:
    group = context.group_of(task, place)
    if group is not None and faulty:
        group = WithoutFactor(group.mesh)
    step = steps.of(task.model, task.workload, group, task.config)
    setting = TrainingSetup.of(task, place, step.loss)
    with unsummed_norms() if faulty else contextlib.nullcontext():
        trainer = wrap.make_trainer(step.build_model(), setting)
    loop = ResumeLoop(trainer.parameter_checksum, setting, step, ProgressFile(folder, place.rank))
    with contextlib.ExitStack() as faults:
        for plant in (unsummed_twins, undivided_experts) if faulty else ():
            faults.enter_context(plant())
        run_steps(loop.record(task.plan.parity_steps), trainer)
    trainer.close()
    return loop
