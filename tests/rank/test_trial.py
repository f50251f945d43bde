"""Results of a trial: measurements when it runs, and the right kind of failure when it does not."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from shardtune.api_schemas.training.models import ModelSummary
from shardtune.api_schemas.trials.failures import FailureKind
from shardtune.api_schemas.trials.leases import ModelSummaryTask
from shardtune.api_schemas.trials.rank_reports import RankReport
from tests.rank.helpers.fork_server_process import HostProcess
from tests.support.ranks.tiny_tasks import tiny_task

pytestmark = pytest.mark.ranks

DDP = {"kind": "ddp"}


def test_a_trial_reports_time_memory_and_every_loss(run: Callable[..., RankReport]) -> None:
    report = run(DDP, parity_steps=3, max_warmup_steps=2, window_steps=2, min_windows=3, max_windows=3)
    assert len(report.window_step_times_s) == 3 and min(report.window_step_times_s) > 0
    assert report.measured_steps == 6 and len(report.trajectory) == 3
    assert len(report.losses) == 3 + report.warmup_steps + 6
    assert report.wrap_time_s is not None and report.versions["torch"]


def test_a_trial_that_is_surely_too_slow_ends_within_its_warm_up(run: Callable[..., RankReport]) -> None:
    report = run(DDP, parity_steps=2, max_warmup_steps=8, min_windows=3, max_windows=3, prune_above_s=1e-6)
    assert report.is_pruned and report.warmup_steps == 0
    assert 3 <= report.measured_steps == len(report.window_step_times_s) == len(report.own_step_times_s) <= 8
    assert len(report.losses) == 2 + report.measured_steps and report.memory is not None
    patient = run(DDP, parity_steps=2, prune_above_s=1000.0)
    assert not patient.is_pruned and len(patient.window_step_times_s) == 2


def test_memory_on_the_cpu_counts_weights_gradients_and_optimizer_state(run: Callable[..., RankReport]) -> None:
    report = run(DDP, sequence_length=8, parity_steps=2)
    assert report.memory is not None and report.memory.peak_allocated_gib is not None
    parameters = 213_568
    states = 16 * parameters / 2**30
    assert states < report.memory.peak_allocated_gib < 2 * states
    assert report.memory.peak_reserved_gib is None


def test_sharding_takes_less_memory_than_replicas(run: Callable[..., RankReport]) -> None:
    peaks = [
        report.memory.peak_allocated_gib or 0.0
        for report in (run(s, parity_steps=2) for s in (DDP, {"kind": "fsdp2", "dp_shard": 2}))
        if report.memory
    ]
    assert peaks[1] < 0.8 * peaks[0]


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"optimizer": {"lr": 1e38}}, FailureKind.NUMERICS),
        ({"strategy": {"kind": "fsdp2", "dp_shard": 3}}, FailureKind.ILLEGAL),
        ({"strategy": {"kind": "fsdp1", "dp_shard": 2, "cpu_offload": True}}, FailureKind.ILLEGAL),
        ({"global_batch": 7}, FailureKind.ILLEGAL),
        ({"strategy": {"kind": "zero", "stage": 3, "zero_hpz_partition_size": 4}}, FailureKind.ILLEGAL),
    ],
    ids=[
        "loss not finite",
        "impossible mesh",
        "offload without a GPU",
        "batch not divisible",
        "impossible secondary group",
    ],
)
def test_failures_are_of_the_right_kind_on_every_rank(
    host: HostProcess, changes: dict[str, object], kind: FailureKind
) -> None:
    changes = {"parity_steps": 4, **changes}
    strategy = changes.pop("strategy", DDP)
    assert isinstance(strategy, dict)
    reports = host.run(tiny_task(strategy, **changes))
    assert [report.failure.kind if report.failure else report.failure for report in reports] == [kind, kind]
    assert all(report.window_step_times_s == () for report in reports)


def test_going_over_the_limit_says_by_how_much(host: HostProcess) -> None:
    reports = host.run(tiny_task(DDP, memory_limit_gib=1e-4, parity_steps=4))
    kinds = [report.failure.kind if report.failure else report.failure for report in reports]
    assert kinds == [FailureKind.OVER_LIMIT] * 2 and all(report.window_step_times_s == () for report in reports)
    failure = reports[0].failure
    assert failure is not None and failure.peak_allocated_gib is not None and failure.peak_allocated_gib > 1e-4


def test_a_profile_task_writes_a_profile(host: HostProcess) -> None:
    task = tiny_task(DDP)
    folder = host.prepare(ModelSummaryTask(model=task.model, workload=task.workload))
    assert host.run_folder(folder, 1) == [0]
    assert ModelSummary.model_validate_json((folder / "model_summary.json").read_text()).parameters == 213_568


def test_a_profile_of_an_unknown_architecture_is_a_report(host: HostProcess) -> None:
    task = tiny_task(DDP)
    unknown = task.model.model_copy(update={"config": {"model_type": "no-such-model"}})
    folder = host.prepare(ModelSummaryTask(model=unknown, workload=task.workload))
    assert host.run_folder(folder, 1) == [1]
    failure = RankReport.model_validate_json((folder / "rank_0.json").read_text()).failure
    assert failure is not None and failure.kind is FailureKind.ILLEGAL and "no-such-model" in failure.message


def test_a_rank_also_starts_cold(tmp_path: Path) -> None:
    """One of one: its imports take 13 s of a core."""
    (tmp_path / "task.json").write_text(tiny_task(DDP, ranks=1, parity_steps=2).model_dump_json())
    place = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    command = [sys.executable, "-m", "shardtune.workers.rank", str(tmp_path)]
    assert subprocess.run(command, env=os.environ | place, timeout=120, check=False).returncode == 0
    assert RankReport.model_validate_json((tmp_path / "rank_0.json").read_text()).status == "complete"
