"""Trials of a tiny model at 512 ranks, and their rehearsals in forks that have torch imported."""

import uuid
from pathlib import Path
from typing import Any

from shardtune.api_schemas.trials.leases import RehearsalTask, TrialTask
from shardtune.api_schemas.trials.rehearsals import RehearsalAnswer
from shardtune.tuner.prediction import catalogue
from shardtune.workers.rank.rehearsal import __main__ as rehearsal
from tests.support.processes import preloaded_forks
from tests.support.ranks.tiny_tasks import LLAMA, tiny_task

CLUSTER = catalogue.parse_cluster("64x8xh100")


def at_target(strategy: dict[str, Any], layers: int = 12, **changes: Any) -> TrialTask:
    """A trial at 512 ranks of a tiny model with this number of blocks."""
    task = tiny_task(strategy, **{"global_batch": 512, "precision": "bf16-mixed", **changes})
    model = task.model.model_copy(update={"config": LLAMA | {"num_hidden_layers": layers}})
    return task.model_copy(update={"cluster": CLUSTER, "model": model})


def answer_of(task: RehearsalTask, folder: Path) -> RehearsalAnswer:
    """Answer of a rehearsing process, but for its start."""
    name = uuid.uuid4().hex
    answer, log = folder / f"{name}.json", folder / f"{name}.log"
    environment = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    preloaded_forks.fork(_write_answer, task.model_dump_json(), answer, output=log, environment=environment).join()
    assert answer.exists(), log.read_text()
    return RehearsalAnswer.model_validate_json(answer.read_text())


def _write_answer(task: str, path: Path) -> None:
    path.write_text(rehearsal.answer(RehearsalTask.model_validate_json(task)).model_dump_json())
