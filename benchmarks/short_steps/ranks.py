"""One rank that trains configurations one after the other, with short and whole steps in turns: `python -m … FOLDER`."""

import gc
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from shardtune.api_schemas.base import GIB
from shardtune.api_schemas.trials.leases import TrialTask
from shardtune.api_schemas.trials.short_steps import ShortSteps
from shardtune.workers.rank import mesh
from shardtune.workers.rank.device import CpuDevice
from shardtune.workers.rank.measure import memory
from shardtune.workers.rank.model import context
from shardtune.workers.rank.rank_context import RankContext
from shardtune.workers.rank.strategies.base import Trainer, TrainingSetup
from shardtune.workers.rank.training import step as steps
from shardtune.workers.rank.training import wrap
from shardtune.workers.rank.training.loop import PROFILED_STEPS
from shardtune.workers.rank.training.step_loop import StepLoop
from shardtune.workers.rank.training.step_runs import Steps, run_steps
from shardtune.workers.rank.trial_dir import ProgressFile

_WARM_UP_ROUNDS = 1


class TurnsLoop(StepLoop):
    """Loop that lets short, longer and whole steps take turns."""

    def record(self, short: ShortSteps | None) -> Steps[None]:
        """Yield the steps whose memory is recorded, with copies of the study's shared samples or whole."""
        for _ in range(PROFILED_STEPS):
            yield from self._record_step(self._micro_batches.of_recorded_step(self._step, short))

    def turns(self, counts: tuple[int, ...], rounds: int, times: list[list[float]]) -> Steps[None]:
        """Yield rounds of one step at each number of micro batches, and append the slowest rank's seconds."""
        for _ in range(rounds):
            row = []
            for count in counts:
                _, seconds = yield from self._timed([self._micro_batches.of_step(self._step, count)])
                row.append(self._slowest(seconds))
            times.append(row)


def _build(task: TrialTask, place: RankContext, folder: Path) -> tuple[Trainer, TurnsLoop]:
    step = steps.of(task.model, task.workload, context.group_of(task, place), task.config)
    setting = TrainingSetup.of(task, place, step.loss)
    trainer = wrap.make_trainer(step.build_model(), setting)
    return trainer, TurnsLoop(trainer.parameter_checksum, setting, step, ProgressFile(folder, place.rank))


def _peak_gib(task: TrialTask, short: ShortSteps | None, place: RankContext, folder: Path) -> float:
    """Peak memory of the fullest rank over build and recorded steps."""
    gc.collect()
    recording = memory.Recording()
    trainer, loop = _build(task, place, folder)
    run_steps(loop.record(short), trainer)
    records = [record.extra_fields for record in recording.stop()]
    # torch's count goes on from what earlier models in this process left in it, as their release is not recorded.
    before = records[0].total_allocated - records[0].alloc_size
    (peak,) = mesh.largest([(max(record.total_allocated for record in records) - before) / GIB], place)
    trainer.close()
    return peak


def _figures(name: str, task: TrialTask, rounds: int, place: RankContext, folder: Path) -> dict[str, Any]:
    short = task.plan.short_steps
    assert short is not None and short.accumulations is not None, f"{name}: the planner gives it whole steps"
    short_peak, whole_peak = (_peak_gib(task, item, place, folder) for item in (short, None))
    trainer, loop = _build(task, place, folder)
    whole = task.config.accumulation(task.workload.global_batch, place.world_size)
    counts, times = (*short.accumulations, whole), list[list[float]]()
    run_steps(loop.turns(counts, _WARM_UP_ROUNDS + rounds, times), trainer)
    trainer.close()
    return {
        "name": name,
        "accumulations": short.accumulations,
        "whole": whole,
        "times_s": times[_WARM_UP_ROUNDS:],
        "short_peak_gib": short_peak,
        "whole_peak_gib": whole_peak,
    }


def main() -> None:
    """Train all configurations of a folder and write rank 0's figures."""
    folder = Path(sys.argv[1])
    plan = json.loads((folder / "tasks.json").read_text())
    torch.set_num_threads(1)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    place = RankContext(rank, rank, world, world, CpuDevice())
    mesh.join(place, folder)
    tasks = {name: TrialTask.model_validate(task) for name, task in plan["tasks"].items()}
    rows = []
    for name, task in tasks.items():
        rows.append(_figures(name, task, plan["rounds"], place, folder))
        if rank == 0:
            (folder / "figures.json").write_text(json.dumps(rows))
    dist.barrier()
    # As the fork server's ranks end: gloo has hung in what the interpreter winds down.
    os._exit(0)


if __name__ == "__main__":
    main()
