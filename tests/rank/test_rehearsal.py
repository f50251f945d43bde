"""Rehearsals of a tiny model at 512 ranks: by the strategies' own code, bounded in time, and ended with their owner.

Processes that import torch for themselves where the command's own processes are tested; forks where it is the answer.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from shardtune.api_schemas.trials.leases import RehearsalTask, TrialTask
from shardtune.api_schemas.trials.rehearsals import RehearsalAnswer
from shardtune.service.cli.rehearse import processes
from tests.rank.helpers.target_tasks import CLUSTER, answer_of, at_target
from tests.support.processes.stack import until

Ask = Callable[..., RehearsalAnswer]


@pytest.fixture
def ask(tmp_path: Path) -> Ask:
    """Rehearse one rank of a trial."""

    def answer(task: TrialTask, **fields: Any) -> RehearsalAnswer:
        return answer_of(RehearsalTask(trial=task, **fields), tmp_path)

    return answer


def test_the_line_from_four_and_eight_blocks_meets_the_model_of_twelve(
    ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first process of the command is its own, which imports torch for 10 s of a core; the second one is a fork."""
    task = at_target({"kind": "fsdp2", "dp_shard": 64, "tensor_parallel": 2, "dp_replicate": 4})
    asked, start = list[RehearsalTask](), processes.ask

    def ask_once(part: RehearsalTask, limit_s: float) -> RehearsalAnswer:
        asked.append(part)
        return start(part, limit_s) if len(asked) == 1 else answer_of(part, tmp_path)

    monkeypatch.setattr(processes, "ask", ask_once)
    extended = processes.rehearse(task, predicted_gib=None)
    assert extended.builds and extended.extended_from == (4, 8), extended.problem
    assert extended.process_groups == 4
    own_depth = ask(task, micro_batches=2).seen
    assert own_depth is not None and own_depth.blocks == 12
    assert extended.allocated_gib is not None
    assert extended.allocated_gib * (1 << 30) == pytest.approx(own_depth.peak_bytes, rel=0.01)


def test_logits_count_by_the_part_that_a_rank_has(ask: Ask) -> None:
    def peak(tensor: int) -> int:
        task = at_target({"kind": "fsdp2", "dp_shard": 512 // tensor, "tensor_parallel": tensor}, layers=4)
        wide = task.model.model_copy(update={"config": {**task.model.config, "vocab_size": 16384}})
        seen = ask(task.model_copy(update={"model": wide}), micro_batches=2).seen
        assert seen is not None
        return seen.peak_bytes

    assert peak(2) < 0.6 * peak(1)


def test_the_last_stage_of_a_pipeline_has_its_blocks_and_the_loss(ask: Ask) -> None:
    task = at_target({"kind": "fsdp2", "dp_shard": 128, "pipeline_parallel": 4}, global_batch=1024)
    seen = ask(task, rank=384, micro_batches=5).seen
    assert seen is not None and seen.blocks == 3 and seen.parts["forward"] > 0


def test_cpu_ranks_hold_a_clone_of_what_they_reduce(ask: Ask) -> None:
    on_gpus = at_target({"kind": "fsdp1", "dp_shard": 512}, layers=4)
    cpu = CLUSTER.model_copy(update={"device": "cpu", "gpu": "CPU"})
    gpus, ranks = (ask(task).seen for task in (on_gpus, on_gpus.model_copy(update={"cluster": cpu})))
    assert gpus is not None and ranks is not None
    # gloo clones the float32 gradients of a unit; on 512 ranks no shard hides it.
    assert ranks.peak_bytes > gpus.peak_bytes + (32 << 10)


@pytest.mark.parametrize(
    ("strategy", "changes", "code", "field"),
    [
        # Two heads of keys are too few for four ranks.
        ({"kind": "fsdp2", "dp_shard": 128, "tensor_parallel": 4}, {}, "misfit", "tensor_parallel"),
        ({"kind": "fsdp2", "dp_shard": 48, "dp_replicate": 10}, {}, "misfit", "dp_replicate × dp_shard"),
        ({"kind": "zero", "stage": 3}, {}, "unsupported", "backend"),
    ],
)
def test_what_cannot_be_built_is_refused_with_its_field(
    ask: Ask, strategy: dict[str, Any], changes: dict[str, Any], code: str, field: str
) -> None:
    problem = ask(at_target(strategy, **changes)).problem
    assert problem is not None and (problem.code, problem.field) == (code, field), problem


def test_the_limit_of_time_ends_a_rehearsal() -> None:
    task = RehearsalTask(trial=at_target({"kind": "fsdp2", "dp_shard": 512}))
    problem = processes.ask(task, limit_s=0.5).problem
    assert problem is not None and problem.code == "time" and "--limit-s" in problem.message


def test_a_rehearsal_ends_with_its_owner() -> None:
    task = RehearsalTask(trial=at_target({"kind": "fsdp2", "dp_shard": 512}))
    code = (
        "import sys; from shardtune.api_schemas.trials.leases import RehearsalTask\n"
        "from shardtune.service.cli.rehearse import processes\n"
        "processes.ask(RehearsalTask.model_validate_json(sys.argv[1]), 300)"
    )
    owner = subprocess.Popen([sys.executable, "-c", code, task.model_dump_json()])
    children: list[psutil.Process] = []
    try:
        until(
            lambda: bool(children.extend(psutil.Process(owner.pid).children(recursive=True)) or children),
            60,
            "a rehearsing process",
        )
    finally:
        os.kill(owner.pid, signal.SIGKILL)
        owner.wait()
    until(lambda: not any(_lives(child) for child in children), 30, "the end of the rehearsing process")


def _lives(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
