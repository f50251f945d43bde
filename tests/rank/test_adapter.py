"""Scripts of the user's own as trials: what a good one leaves behind, and how each kind of bad one ends."""

import json
import textwrap
from pathlib import Path

import pytest

from shardtune.api_schemas.training.models import ModelSpec, ModelSummary
from shardtune.api_schemas.trials.failures import Failure, FailureKind
from shardtune.api_schemas.trials.leases import ModelSummaryTask, TrialTask
from shardtune.api_schemas.trials.rank_reports import RankReport
from tests.rank.helpers.fork_server_process import HostProcess
from tests.support.ranks.tiny_tasks import tiny_task

pytestmark = pytest.mark.ranks

EXAMPLES = Path(__file__).parents[2] / "examples" / "adapter"
START = """
import os, sys, time
import torch
from shardtune import adapter
trial = adapter.trial()
model = trial.prepare(torch.nn.Linear(2, 1))
"""
BAD = {
    "raises": ("trial.report(1.0); 1 / 0", FailureKind.CRASH, "ZeroDivisionError"),
    "never steps": ("pass", FailureKind.CRASH, "after 0 reported steps"),
    "stops too early": ("trial.report(1.0); trial.report(1.0)", FailureKind.CRASH, "after 2 reported steps"),
    "leaves with a message": ("sys.exit('no data')", FailureKind.CRASH, "no data"),
    "reports NaN": ("trial.report(float('nan'))", FailureKind.NUMERICS, "loss is nan"),
    "reports a negative loss": ("trial.report(-1.0)", FailureKind.NUMERICS, "never negative"),
    "reports a vector": ("trial.report(torch.ones(3))", FailureKind.CRASH, "one number"),
    "counts backwards": ("trial.report(1.0, step=5); trial.report(1.0, step=4)", FailureKind.CRASH, "step (4)"),
    "trains in a fork": (
        "pid = os.fork()\nfor step in range(99):\n    trial.report(1.0)\nos.waitpid(pid, 0)",
        FailureKind.CRASH,
        "which forked it",
    ),
    "starts its own ranks": (
        "import subprocess\n"
        "done = subprocess.run([sys.executable, '-c', 'from shardtune import adapter; adapter.trial()'], "
        "capture_output=True, text=True)\nraise RuntimeError(done.stderr)",
        FailureKind.CRASH,
        "the worker starts all ranks",
    ),
    "prepares late": ("model = trial.prepare(model)", FailureKind.CRASH, "called twice"),
}


def run_script(
    host: HostProcess, path: Path, task: TrialTask | ModelSummaryTask, ranks: int
) -> tuple[Path, list[RankReport]]:
    folder = host.prepare(task.model_copy(update={"model": ModelSpec(name="own", script="own", config={"rank": 4})}))
    (folder / "script.json").write_text(json.dumps({"path": str(path), "arguments": []}))
    codes = host.run_folder(folder, 1 if task.kind == "model_summary" else ranks)
    paths = [folder / f"rank_{rank}.json" for rank in range(len(codes))]
    return folder, [RankReport.model_validate_json(path.read_text()) for path in paths if path.exists()]


def failure_of(host: HostProcess, folder: Path, body: str) -> Failure:
    script = folder / "script.py"
    script.write_text(textwrap.dedent(START) + body + "\n")
    _, reports = run_script(host, script, tiny_task({"kind": "ddp"}, ranks=1, parity_steps=3), 1)
    assert reports[0].failure is not None and reports[0].window_step_times_s == ()
    return reports[0].failure


@pytest.mark.parametrize("name", BAD)
def test_a_bad_script_ends_as_a_failure_with_its_traceback(host: HostProcess, tmp_path: Path, name: str) -> None:
    body, kind, says = BAD[name]
    failure = failure_of(host, tmp_path, body)
    assert failure.kind is kind
    assert says in failure.message
    # What ended without an error has no line of the script to show.
    ended_early = name in ("never steps", "stops too early")
    assert ("/script.py" in (failure.traceback or "")) != ended_early
    assert ("before the trial had seen enough" in failure.message) == ended_early


def test_a_script_shows_its_model_before_anything_is_tried(host: HostProcess, tmp_path: Path) -> None:
    task = tiny_task({"kind": "ddp"})
    profile_task = ModelSummaryTask(model=task.model, workload=task.workload)
    folder, _ = run_script(host, EXAMPLES / "trainer_lora.py", profile_task, 1)
    model_summary = ModelSummary.model_validate_json((folder / "model_summary.json").read_text())
    assert len(model_summary.blocks) == 4 and model_summary.block_class == "LlamaDecoderLayer"
    assert model_summary.trainable_parameters == 4 * 2 * 4 * (64 + 48)
    assert (
        model_summary.forward_flops_per_token is None
        and model_summary.backends is not None
        and "ddp" in model_summary.backends
    )
    (tmp_path / "script.py").write_text(textwrap.dedent(START))
    folder, _ = run_script(host, tmp_path / "script.py", profile_task, 1)
    assert ModelSummary.model_validate_json((folder / "model_summary.json").read_text()).backends is None, (
        "it says nothing"
    )


IGNORING = (
    "from shardtune.adapter.accelerate_options import accelerator_options as options",
    "from shardtune.adapter.trainer import training_arguments as options",
)


def test_a_script_rejects_what_its_library_would_ignore(host: HostProcess, tmp_path: Path) -> None:
    task = tiny_task({"kind": "fsdp2", "dp_shard": 2})
    for helper in IGNORING:
        (tmp_path / "script.py").write_text(f"{textwrap.dedent(START)}{helper}\noptions(trial)\n")
        _, reports = run_script(host, tmp_path / "script.py", task, 2)
        failure = reports[0].failure
        assert failure is not None and failure.kind is FailureKind.ILLEGAL
        assert "ignores fsdp2 on CPU ranks" in failure.message
    _, reports = run_script(host, EXAMPLES / "accelerate_loop.py", task, 2)
    assert reports[0].failure is not None and "the script takes ddp only, not fsdp2" in reports[0].failure.message


def test_a_script_that_asks_a_configuration_for_what_it_has_not_has_rejected_it(
    host: HostProcess, tmp_path: Path
) -> None:
    (tmp_path / "script.py").write_text(textwrap.dedent(START) + "trial.config.strategy.to_ddp()\n")
    _, reports = run_script(host, tmp_path / "script.py", tiny_task({"kind": "zero", "stage": 2}, ranks=1), 1)
    assert reports[0].failure is not None and reports[0].failure.kind is FailureKind.ILLEGAL
    assert "asked a configuration of zero for to_ddp" in reports[0].failure.message
    _, reports = run_script(host, EXAMPLES / "plain_loop.py", tiny_task({"kind": "zero", "stage": 2}, ranks=1), 1)
    assert reports[0].failure is not None and "the script takes ddp only, not zero" in reports[0].failure.message


def test_the_same_training_by_hand_and_by_accelerate_gives_the_same_numbers(host: HostProcess) -> None:
    task = tiny_task({"kind": "ddp", "bucket_cap_mb": 1}, parity_steps=4, micro_batch=2)
    other = task.model_copy(update={"config": task.config.model_copy(update={"micro_batch": 1})})
    plain = run_script(host, EXAMPLES / "plain_loop.py", task, 2)[1][0]
    accelerated = run_script(host, EXAMPLES / "accelerate_loop.py", other, 2)[1][0]
    assert plain.status == accelerated.status == "complete", (plain.failure, accelerated.failure)
    assert [step.loss for step in plain.trajectory] == pytest.approx([s.loss for s in accelerated.trajectory], rel=1e-5)
    squares = [step.parameter_square_sum for step in accelerated.trajectory]
    assert [step.parameter_square_sum for step in plain.trajectory] == pytest.approx(squares, rel=1e-6)
    assert plain.memory is not None and plain.memory.peak_allocated_gib is not None
    assert plain.memory.peak_allocated_gib > 4 * 4 * 200_000 / 2**30


def test_scripts_that_shard_train_what_the_plain_loop_does(host: HostProcess) -> None:
    plain = run_script(host, EXAMPLES / "plain_loop.py", tiny_task({"kind": "ddp"}, parity_steps=3), 2)[1][0]
    squares = [step.parameter_square_sum for step in plain.trajectory]
    for script, strategy in (
        ("fsdp2_loop", {"kind": "fsdp2", "dp_shard": 2}),
        ("deepspeed_loop", {"kind": "zero", "stage": 1}),
    ):
        task = tiny_task(strategy, parity_steps=3, micro_batch=2)
        sharded = run_script(host, EXAMPLES / f"{script}.py", task, 2)[1][0]
        assert plain.status == sharded.status == "complete", (plain.failure, sharded.failure)
        assert [step.loss for step in sharded.trajectory] == pytest.approx([s.loss for s in plain.trajectory], rel=1e-5)
        assert [step.parameter_square_sum for step in sharded.trajectory] == pytest.approx(squares, rel=1e-6)


WAITING = """
import os, time
import torch
from torch.utils.data import DataLoader, Dataset
from shardtune import adapter

class Slow(Dataset):
    def __len__(self):
        return 10_000
    def __getitem__(self, index):
        time.sleep(0.02)
        return torch.ones(2)

trial = adapter.trial()
model = trial.prepare(torch.nn.Linear(2, 1))
for batch in DataLoader(Slow(), batch_size=1):
    time.sleep(0.02)
    trial.report(model(batch).square().mean())
"""


def test_what_a_script_waits_for_its_data_is_told_apart(host: HostProcess, tmp_path: Path) -> None:
    (tmp_path / "waiting.py").write_text(WAITING)
    _, (report,) = run_script(host, tmp_path / "waiting.py", tiny_task({"kind": "ddp"}, ranks=1, parity_steps=2), 1)
    assert report.status == "complete", report.failure
    timed_s = sum(report.window_step_times_s)
    assert report.data_wait_s is not None and 0.02 * len(report.window_step_times_s) <= report.data_wait_s < timed_s
    assert timed_s - report.data_wait_s >= 0.02 * len(report.window_step_times_s)
