"""Short steps on real ranks: the same training as one of the shared samples alone, whatever the numbers of micro
batches that follow each other, and the whole step's peak memory."""

import functools
from collections.abc import Callable
from typing import Any

import pytest

from shardtune.api_schemas.trials.leases import TrialTask
from shardtune.api_schemas.trials.rank_reports import RankReport
from shardtune.api_schemas.trials.short_steps import ShortSteps
from shardtune.tuner.verdict import short_steps
from tests.rank.helpers.fork_server_process import HostProcess
from tests.rank.helpers.parallel_ranks import FP32
from tests.support.long_run import IS_LONG, telling
from tests.support.ranks.reference_training import deviation, train
from tests.support.ranks.tiny_tasks import LLAMA, tiny_task

pytestmark = pytest.mark.ranks

BUCKETS = {"reduce_bucket_size": 50_000, "allgather_bucket_size": 50_000}
STRATEGIES: dict[str, dict[str, Any]] = {
    "ddp": {"kind": "ddp"},
    "zero-1": {"kind": "zero", "stage": 1} | BUCKETS,
    "zero-2": {"kind": "zero", "stage": 2} | BUCKETS,
    "zero-3": {"kind": "zero", "stage": 3} | BUCKETS,
    "fsdp1": {"kind": "fsdp1", "dp_shard": 2},
    "fsdp2": {"kind": "fsdp2", "dp_shard": 2},
}
SAMPLES = 4
STAGES = {"kind": "fsdp2", "dp_shard": 1, "pipeline_parallel": 2, "reshard_after_forward": False, "grad_sync": "last"}
EVERY_BACKEND = {name: STRATEGIES[name] for name in ("ddp", "zero-1", "zero-2", "zero-3", "fsdp1", "fsdp2")} | {
    "1f1b": STAGES,
    "interleaved": STAGES | {"pipeline_schedule": "interleaved_1f1b", "pipeline_virtual_stages": 2},
}
OFTEN = ("ddp", "zero-2", "zero-3", "fsdp1", "fsdp2", "1f1b")


def task_of(strategy: dict[str, Any], **changes: Any) -> TrialTask:
    """Task whose whole step has 24 micro batches on each rank, with the short steps that the planner gives it."""
    plan = {"parity_steps": 4, "min_windows": 2, "max_windows": 2, "max_warmup_steps": 2}
    task = tiny_task(strategy, global_batch=48, **(plan | changes))
    planned = short_steps.of_run(SAMPLES, task.config, task.workload, task.cluster)
    return task.model_copy(update={"plan": task.plan.model_copy(update={"short_steps": planned})})


def reference(task: TrialTask) -> TrialTask:
    """The same training over the shared samples alone, as the whole global batch."""
    workload = task.workload.model_copy(update={"global_batch": SAMPLES})
    return task.model_copy(update={"workload": workload})


def run(host: HostProcess, task: TrialTask) -> RankReport:
    report = host.run(task)[0]
    assert report.status == "complete", report.failure
    return report


@pytest.fixture(scope="module")
def report_of(host: HostProcess) -> Callable[[str], RankReport]:
    """Report of the task of a backend, which runs once."""
    return functools.cache(lambda name: run(host, task_of(EVERY_BACKEND[name])))


@pytest.mark.parametrize("name", telling(EVERY_BACKEND, OFTEN))
def test_copies_of_the_shared_samples_train_the_same(report_of: Callable[[str], RankReport], name: str) -> None:
    task = task_of(EVERY_BACKEND[name])
    report = report_of(name)
    apart = deviation(report.trajectory, train(reference(task)))
    assert all(apart[figure] <= FP32[figure] for figure in FP32), apart
    times = report.short_steps
    assert times is not None and times.accumulations == short_steps.accumulations(
        task.config, 24 * task.config.strategy.stages
    )
    assert len(times.fewer_s) == len(times.more_s) == len(report.window_step_times_s) == 2
    # A pair is two steps: every one of them is in the losses.
    assert len(report.losses) == 4 + 2 * (report.warmup_steps + 2)


def test_micro_batches_that_do_not_divide_hold_copies_of_several_samples(host: HostProcess) -> None:
    task = task_of(STRATEGIES["fsdp2"], micro_batch=3)
    assert task.plan.short_steps == ShortSteps(parity_samples=4, parity_accumulation=4, accumulations=None)
    apart = deviation(run(host, task).trajectory, train(reference(task)))
    assert all(apart[figure] <= FP32[figure] for figure in FP32), apart


def test_steps_of_changing_numbers_of_micro_batches_train_the_same_with_every_backend(
    report_of: Callable[[str], RankReport],
) -> None:
    """An engine that counts micro batches itself must end each step where its batch ends."""
    losses = {
        name: report_of(name).losses for name in ("ddp", "zero-2", "zero-3", "fsdp1", *(["zero-1"] if IS_LONG else []))
    }
    expected = losses.pop("ddp")
    for name, other in losses.items():
        common = min(len(other), len(expected))
        assert other[:common] == pytest.approx(expected[:common], rel=1e-5), name


@pytest.mark.parametrize("name", telling(["zero-3", "1f1b", "interleaved"], ["1f1b"]))
def test_short_steps_have_the_whole_steps_peak(host: HostProcess, name: str) -> None:
    short = task_of(EVERY_BACKEND[name], model=LLAMA | {"num_hidden_layers": 4 if IS_LONG else 2})
    whole = short.model_copy(update={"plan": short.plan.model_copy(update={"short_steps": None})})
    peaks = [report.memory.peak_allocated_gib for report in (run(host, short), run(host, whole)) if report.memory]
    # The token ids of a whole step, and a pipeline's copy of them, weigh something beside a model of kilobytes.
    workload = whole.workload
    tokens_gib = 2 * 8 * workload.global_batch * workload.sequence_length / 2**30
    assert peaks[0] == pytest.approx(peaks[1], rel=0.01, abs=tokens_gib)
