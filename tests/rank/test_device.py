"""Calls of a rank to a GPU, with a fake device on the processor: clock, memory, restart, environment, and its end for
want of memory."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from shardtune.api_schemas.trials.failures import Failure, FailureKind
from shardtune.api_schemas.trials.leases import ResumeTask, TrialTask
from shardtune.api_schemas.trials.rank_reports import RankReport
from shardtune.api_schemas.trials.resume_check import ResumePlan
from shardtune.workers.agent import collect
from shardtune.workers.agent.supervise import RanksEnd
from shardtune.workers.launchers.base import RankExit
from shardtune.workers.rank import classify
from shardtune.workers.rank.device import CpuDevice
from shardtune.workers.rank.training.data_wait import DataWait
from shardtune.workers.trial_dir import TrialDir
from tests.rank.helpers import faulty_ranks
from tests.rank.helpers.fake_gpu import STEP_S, PlayedGpu, run_rank
from tests.support.ranks.tiny_tasks import tiny_task

pytestmark = pytest.mark.ranks

ENVIRONMENT = {"expandable_segments": True, "numa_binding": "exclusive"}


def folder_of(task: TrialTask | ResumeTask, folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "task.json").write_text(task.model_dump_json())
    return folder


def test_a_trial_waits_for_its_device_counts_its_memory_and_takes_it_only_once_it_is_set_up(tmp_path: Path) -> None:
    task = tiny_task({"kind": "ddp"}, ranks=1, parity_steps=2, window_steps=3)
    task = task.model_copy(update={"config": task.config.model_copy(update=ENVIRONMENT)})
    requested_run_rank = run_rank(folder_of(task, tmp_path))
    report = RankReport.model_validate_json((tmp_path / "rank_0.json").read_text())
    assert report.status == "complete", report.failure
    assert min(report.window_step_times_s) >= STEP_S and min(report.warmup_step_times_s) >= STEP_S
    assert report.memory is not None and report.memory.allocator_retries == 1
    assert (report.memory.peak_reserved_gib, report.memory.device_used_gib) == (3.0, 6.0)
    # What the check of the pace has cached is given back before memory is counted.
    assert requested_run_rank == ["allocator expandable_segments:True", "bind exclusive", "use", "release", "count"]


def test_new_processes_go_on_with_the_random_state_of_their_device(tmp_path: Path) -> None:
    trial = tiny_task({"kind": "ddp"}, ranks=1)
    folder = folder_of(ResumeTask(trial=trial, plan=ResumePlan(fewest_steps=3, most_steps=3, steps_after=2)), tmp_path)
    assert run_rank(folder) == ["use", "saved 3"]
    assert run_rank(folder) == ["use", "loaded 3"]
    report = RankReport.model_validate_json((folder / "rank_0.json").read_text())
    assert report.status == "complete" and report.memory is not None and report.memory.peak_reserved_gib == 3.0


def test_a_device_that_still_computes_has_not_waited_for_data(tmp_path: Path) -> None:
    gpu = PlayedGpu(tmp_path / "log")
    wait = DataWait(gpu)
    wait.add(1.0)
    gpu.queue(60.0)
    wait.add(1.0)
    assert wait.seconds == 1.0


def test_a_failed_call_of_nccl_on_a_full_device_is_for_want_of_memory(tmp_path: Path) -> None:
    failed = dist.DistBackendError("NCCL error: unhandled cuda error")
    assert classify.failure_of(failed, "training", 0, PlayedGpu(tmp_path / "log")).kind is FailureKind.OOM
    assert classify.failure_of(failed, "training", 0, CpuDevice()).kind is FailureKind.CRASH
    assert classify.failure_of(failed, "training", 0).kind is FailureKind.CRASH
    told = dist.DistBackendError("NCCL error in: NCCLUtils.cpp:77\nLast error:\nCuda failure 2 'out of memory'")
    assert classify.failure_of(told, "training", 0).kind is FailureKind.OOM


def test_a_fault_of_the_gpu_is_neither_the_configurations_crash_nor_its_lack_of_memory(tmp_path: Path) -> None:
    full = PlayedGpu(tmp_path / "log")
    failed = torch.AcceleratorError("CUDA error: uncorrectable ECC error encountered")
    failed.error_code = 214  # type: ignore[attr-defined]
    asserted = torch.AcceleratorError("CUDA error: device-side assert triggered")
    asserted.error_code = 710  # type: ignore[attr-defined]
    told = dist.DistBackendError(
        "NCCL error\nLast error:\nCuda failure 220 'uncorrectable NVLink error detected during the execution'"
    )
    not_ready = RuntimeError("Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized")
    for error in (failed, told, not_ready):
        assert classify.failure_of(error, "training", 0, full).kind is FailureKind.DEVICE
    for error in (asserted, RuntimeError("system not yet initialized")):
        assert classify.failure_of(error, "training", 0).kind is FailureKind.CRASH


def test_a_library_that_does_not_start_on_a_full_device_lacks_memory(tmp_path: Path) -> None:
    failed = RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`")
    assert classify.failure_of(failed, "training", 0, PlayedGpu(tmp_path / "log")).kind is FailureKind.OOM
    assert classify.failure_of(failed, "training", 0, CpuDevice()).kind is FailureKind.CRASH
    assert classify.failure_of(failed, "training", 0, _BrokenGpu(tmp_path / "log")).kind is FailureKind.CRASH


class _BrokenGpu(PlayedGpu):
    """GPU on which each call of CUDA raises the error of an earlier kernel."""

    def free_bytes(self) -> int | None:
        raise RuntimeError("CUDA error: device-side assert triggered")


@pytest.mark.parametrize("form", faulty_ranks.OUT_OF_MEMORY)
def test_one_rank_without_memory_ends_both_and_the_run_is_out_of_memory(tmp_path: Path, form: str) -> None:
    """Peers do not end each other: a rank meets the end of its peer in the middle of a collective."""
    task = tiny_task({"kind": "ddp"}, parity_steps=4)
    faulty_ranks.run_ranks(form, folder_of(task, tmp_path))
    directory = TrialDir(tmp_path)
    reports = [directory.report(rank) for rank in range(2)]
    assert [report is not None and report.status for report in reports] == ["failed", "failed"]
    ended = RanksEnd((RankExit(0, 1), RankExit(1, 1)), None, "", 0.0, 1.0)
    outcome = collect.attempt_outcome(task, directory, ended, None)
    assert isinstance(outcome, Failure) and (outcome.kind, outcome.rank) == (FailureKind.OOM, 1)
