"""fp16-mixed trains the same on every backend: float32 masters, computation in float16, a dynamic loss scale.

Each against one process over the whole global batch. Every backend with each mechanism with SHARDTUNE_TEST_LONG=1.
"""

import gzip
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from shardtune.api_schemas.trials.failures import FailureKind
from shardtune.api_schemas.trials.leases import ResumeTask, TraceTask, TrialTask
from shardtune.api_schemas.trials.rank_reports import RankReport
from shardtune.api_schemas.trials.resume_check import ResumePlan
from shardtune.traces import kineto
from shardtune.traces.diagnose import diagnosis
from shardtune.workers.rank.training.skipped_steps import MOST_TRIES, MOST_WINDOWS
from tests.rank.helpers import overflowing_ranks
from tests.rank.helpers.fork_server_process import HostProcess
from tests.support.long_run import telling, wide
from tests.support.ranks.reference_training import deviation, train
from tests.support.ranks.tiny_tasks import GPT2, LLAMA, MIXTRAL, tiny_task

pytestmark = pytest.mark.ranks

BOUND = {"loss": 5e-5, "grad_norm": 2e-3, "parameter_sum": 2e-4, "parameter_square_sum": 5e-6}
"""Measured over four steps of every case: loss 8.3e-6, norm 3.6e-4, sums 5.8e-5 and 6.8e-7."""
TWO_BLOCKS = LLAMA | {"num_hidden_layers": 2}
BUCKETS = {"reduce_bucket_size": 50_000, "allgather_bucket_size": 50_000}
HOST: dict[str, Any] = {"offload_optimizer": {"pin_memory": False}}
STRATEGIES: dict[str, dict[str, Any]] = {
    "ddp": {"kind": "ddp"},
    **{f"zero-{stage}": {"kind": "zero", "stage": stage} | BUCKETS for stage in (1, 2, 3)},
    "zero-3 offload": {"kind": "zero", "stage": 3} | BUCKETS | HOST,
    "fsdp1": {"kind": "fsdp1", "dp_shard": 2},
    "fsdp2": {"kind": "fsdp2", "dp_shard": 2},
}


def task_of(name: str, **changes: Any) -> TrialTask:
    return tiny_task(
        STRATEGIES[name], **({"precision": "fp16-mixed", "model": TWO_BLOCKS, "parity_steps": 4} | changes)
    )


def assert_same(report: RankReport, task: TrialTask) -> None:
    assert report.status == "complete", report.failure
    largest = deviation(report.trajectory, train(task))
    assert all(largest[name] <= BOUND[name] for name in BOUND), largest


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        pytest.param("ddp", {}, id="ddp"),
        pytest.param("fsdp2", {"micro_batch": 4}, id="fsdp2"),
        pytest.param("zero-3", {"micro_batch": 2}, id="zero-3"),
        *(wide(name, {}, id=name) for name in STRATEGIES if name not in ("ddp", "fsdp2", "zero-3")),
        *(wide(name, {"max_grad_norm": 0.1}, id=f"{name} clipped") for name in ("ddp", "fsdp1", "fsdp2", "zero-2")),
        *(wide(name, {"max_grad_norm": None}, id=f"{name} unclipped") for name in ("ddp", "fsdp1", "fsdp2", "zero-3")),
        *(
            wide(name, {"activation_checkpointing": "full"}, id=f"{name} checkpointing")
            for name in ("ddp", "fsdp1", "fsdp2", "zero-3")
        ),
        *(
            wide(name, {"loss": "chunked", "loss_chunk": 16}, id=f"{name} chunks")
            for name in ("ddp", "fsdp2", "zero-3")
        ),
        *(wide(name, {"model": GPT2}, id=f"{name} gpt2") for name in ("ddp", "fsdp1", "fsdp2")),
        *(wide(name, {"model": MIXTRAL}, id=f"{name} mixtral") for name in ("ddp", "fsdp2")),
    ],
)
def test_float16_trains_the_same(host: HostProcess, name: str, changes: dict[str, Any]) -> None:
    task = task_of(name, **changes)
    assert_same(host.run(task)[0], task)


def planted(plant: str, task: TrialTask | ResumeTask | TraceTask, folder: Path) -> list[RankReport]:
    (folder / "task.json").write_text(task.model_dump_json())
    overflowing_ranks.run_ranks(plant, folder)
    return [RankReport.model_validate_json((folder / f"rank_{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize("name", telling(["ddp", "fsdp1", "fsdp2", "zero-1", "zero-2", "zero-3"], ["fsdp1", "zero-2"]))
def test_steps_that_overflow_are_counted_and_trained_again(name: str, tmp_path: Path) -> None:
    task = task_of(name)
    reports = planted("high scale", task, tmp_path)
    assert_same(reports[0], task)
    assert 5 <= reports[0].skipped_steps < MOST_TRIES and reports[0].skipped_steps == reports[1].skipped_steps
    assert len(reports[0].losses) == 4 + reports[0].warmup_steps + reports[0].measured_steps


@pytest.mark.parametrize("name", telling(["fsdp1", "fsdp2"], ["fsdp1"]))
def test_where_one_rank_overflows_no_rank_updates(name: str, tmp_path: Path) -> None:
    """Each holds other gradients, so that one that updated alone would leave the others' weights."""
    task = task_of(name)
    reports = planted("one rank", task, tmp_path)
    assert_same(reports[0], task)
    assert [report.skipped_steps for report in reports] == [1, 1]


def test_a_timed_window_with_a_skipped_step_is_measured_again(tmp_path: Path) -> None:
    task = task_of("ddp", min_windows=3, max_windows=3)
    report = planted("in a timed window", task, tmp_path)[0]
    assert report.status == "complete", report.failure
    assert report.skipped_steps == 1 and len(report.window_step_times_s) == report.measured_steps == 3


@pytest.mark.parametrize("name", telling(["ddp", "zero-2"], []))
def test_a_resume_check_finds_the_scale_as_a_trial_does(name: str, tmp_path: Path) -> None:
    plan = ResumePlan(fewest_steps=2, most_steps=2, steps_after=2)
    report = planted("higher scale", ResumeTask(trial=task_of(name), plan=plan), tmp_path)[0]
    assert report.status == "complete", report.failure
    assert MOST_WINDOWS < report.skipped_steps < MOST_TRIES and len(report.losses) == 4


@pytest.mark.parametrize(
    ("plant", "skipped"), [wide("higher scale", range(MOST_WINDOWS + 1, MOST_TRIES)), wide("in a traced step", [1])]
)
def test_a_trace_contains_whole_updates_alone(plant: str, skipped: Sequence[int], tmp_path: Path) -> None:
    task = TraceTask(trial=task_of("ddp"), warmup_steps=2, steps=2)
    report = planted(plant, task, tmp_path)[0]
    assert report.status == "complete", report.failure
    assert report.skipped_steps in skipped and len(report.losses) == 6
    trace = gzip.decompress((tmp_path / "traces" / "rank_0.json.gz").read_bytes())
    table = kineto.read(io.BytesIO(trace), "rank_0")
    assert {step.step for step in diagnosis([table]).steps} == {4, 5}


@pytest.mark.parametrize("name", telling(["ddp", "zero-2"], []))
def test_steps_that_keep_overflowing_fail_with_the_reason(name: str, tmp_path: Path) -> None:
    report = planted("endless", task_of(name), tmp_path)[0]
    assert report.failure is not None and report.failure.kind is FailureKind.NUMERICS
    assert f"gradients overflowed float16 in {MOST_TRIES} tries of step 0" in report.failure.message


@pytest.mark.parametrize("name", telling(STRATEGIES, []))
def test_float16_takes_the_memory_of_bfloat16(host: HostProcess, name: str) -> None:
    """As the prediction says, which knows no difference."""
    peaks = []
    for precision in ("fp16-mixed", "bf16-mixed"):
        report = host.run(task_of(name, precision=precision, parity_steps=2))[0]
        assert report.memory is not None and report.memory.peak_allocated_gib is not None, report.failure
        peaks.append(report.memory.peak_allocated_gib)
    assert peaks[0] == pytest.approx(peaks[1], rel=0.01)
