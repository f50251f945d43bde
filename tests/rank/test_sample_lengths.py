"""Samples of several lengths on real ranks: the loss is the mean over the step's tokens, whatever the micro batches."""

from typing import Any

import pytest

from shardtune.api_schemas.base import GIB
from shardtune.api_schemas.trials.leases import TrialTask
from shardtune.api_schemas.trials.rank_reports import RankReport
from shardtune.tuner.prediction.candidates import Dtypes, Implementation
from shardtune.tuner.prediction.configs import from_configs
from shardtune.tuner.prediction.footprint import peak_memory
from shardtune.tuner.prediction.shapes.config_shape import from_config
from tests.rank.helpers.fork_server_process import HostProcess
from tests.support.long_run import wide
from tests.support.ranks.reference_training import deviation, train
from tests.support.ranks.tiny_tasks import GPT2, LLAMA, tiny_task

pytestmark = pytest.mark.ranks

DATA = {"lengths": [2, 5, 5, 9, 11, 17, 24, 31]}
FP32 = {"loss": 1e-6, "grad_norm": 1e-5, "parameter_sum": 3e-5, "parameter_square_sum": 1e-7}
ZERO = {"kind": "zero", "reduce_bucket_size": 50_000, "allgather_bucket_size": 50_000}
STRATEGIES: dict[str, dict[str, Any]] = {
    "ddp": {"kind": "ddp"},
    "fsdp2": {"kind": "fsdp2", "dp_shard": 2},
    "fsdp1": {"kind": "fsdp1", "dp_shard": 2},
    "zero-2": ZERO | {"stage": 2},
    "zero-3": ZERO | {"stage": 3},
}


def task_of(strategy: dict[str, Any], **changes: Any) -> TrialTask:
    defaults = {"model": LLAMA | {"num_hidden_layers": 2}, "parity_steps": 4, "micro_batch": 2, "data": DATA}
    return tiny_task(strategy, **(defaults | {"max_grad_norm": 0.05} | changes))


def run(host: HostProcess, task: TrialTask) -> RankReport:
    report = host.run(task)[0]
    assert report.status == "complete", report.failure
    return report


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        wide("ddp", {}, id="ddp"),
        pytest.param("fsdp2", {"data": DATA | {"layout": "grouped"}}, id="fsdp2-grouped"),
        pytest.param("ddp", {"micro_batch": 4, "data": DATA | {"pad_to_multiple_of": 8}}, id="ddp-multiple"),
        wide("fsdp2", {"micro_batch": 4, "data": DATA | {"pad_to_multiple_of": 8}}, id="fsdp2-multiple"),
        pytest.param("fsdp1", {"model": GPT2}, id="fsdp1-gpt2"),
        pytest.param("zero-2", {"loss": "chunked", "loss_chunk": 16}, id="zero-2-chunked"),
        pytest.param("ddp", {"adapter": {"kind": "lora", "rank": 4}}, id="ddp-lora"),
        wide("zero-3", {"adapter": {"kind": "lora", "rank": 4}}, id="zero-3-lora"),
    ],
)
def test_the_loss_is_the_mean_over_the_steps_tokens(host: HostProcess, name: str, changes: dict[str, Any]) -> None:
    task = task_of(STRATEGIES[name], **changes)
    report = run(host, task)
    apart = deviation(report.trajectory, train(task))
    assert all(apart[figure] <= FP32[figure] for figure in FP32), apart


def test_windows_hold_whole_cycles_of_steps(host: HostProcess) -> None:
    task = task_of(STRATEGIES["ddp"], parity_steps=2, min_windows=3, max_windows=3, max_warmup_steps=2)
    assert task.workload.steps_per_cycle == 4
    report = run(host, task)
    assert len(report.window_step_times_s) == 3
    assert (report.warmup_steps, report.measured_steps) == (8, 12)
    assert len(report.losses) == 2 + 8 + 12


def test_the_peak_is_that_of_the_longest_samples(host: HostProcess) -> None:
    """The run meets the longest shape on purpose: no less than samples that all have nearly this length."""
    model = {"model": LLAMA | {"num_hidden_layers": 2}, "parity_steps": 2, "micro_batch": 4, "global_batch": 8}
    rare = {"lengths": [[3, 1_000_000], [32, 1]]}
    peaks = [
        report.memory.peak_allocated_gib or 0.0
        for data in (rare, {"lengths": [31, 32]}, {"lengths": [3]})
        if (report := run(host, task_of(STRATEGIES["fsdp2"], **(model | {"data": data})))).memory
    ]
    assert peaks[0] == pytest.approx(peaks[1], rel=0.01)
    assert peaks[0] > 1.2 * peaks[2]


def predicted_gib(task: TrialTask) -> float:
    workload = task.workload
    candidate = from_configs([task.config], workload.longest_row, task.cluster.world_size, workload.global_batch)
    shape, dtypes = from_config(task.model.config), Dtypes.of(workload.precision)
    return float(peak_memory(shape, candidate, dtypes, Implementation.of(workload), "cpu").allocated[0]) / GIB


@pytest.mark.parametrize(("name", "micro_batch"), [("fsdp2", 8), ("ddp", 1)])
def test_the_peak_is_the_predicted_one(host: HostProcess, name: str, micro_batch: int) -> None:
    """With a mask of padding where a micro batch has several samples."""
    rare = {"lengths": [[3, 1000], [128, 1]]}
    sizes = {"sequence_length": 128, "global_batch": 16, "parity_steps": 2, "micro_batch": micro_batch}
    task = task_of(STRATEGIES[name], model=LLAMA, data=rare, **sizes)
    memory = run(host, task).memory
    assert memory is not None and memory.peak_allocated_gib == pytest.approx(predicted_gib(task), rel=0.02)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        wide("ddp", {"micro_batch": 1}, id="ddp"),
        pytest.param(
            "fsdp2", {"attention": "eager", "activation_checkpointing": "full"}, id="fsdp2-eager-checkpointed"
        ),
        pytest.param("zero-2", {"loss": "chunked", "loss_chunk": 16}, id="zero-2-chunked"),
        pytest.param("ddp", {"micro_batch": 1, "model": GPT2}, id="ddp-gpt2"),
        wide("zero-3", {"model": GPT2}, id="zero-3-gpt2"),
    ],
)
def test_packed_rows_train_as_their_samples_alone(host: HostProcess, name: str, changes: dict[str, Any]) -> None:
    task = task_of(STRATEGIES[name], **({"data": DATA | {"layout": "packed"}, "sequence_length": 64} | changes))
    report = run(host, task)
    apart = deviation(report.trajectory, train(task))
    assert all(apart[figure] <= FP32[figure] for figure in FP32), apart


def test_the_peak_of_packed_rows_is_the_predicted_one(host: HostProcess) -> None:
    data = {"lengths": [[3, 1000], [60, 1]], "layout": "packed"}
    sizes = {"sequence_length": 128, "global_batch": 16, "parity_steps": 2, "micro_batch": 8}
    task = task_of(STRATEGIES["fsdp2"], model=LLAMA, data=data, **sizes)
    memory = run(host, task).memory
    assert memory is not None and memory.peak_allocated_gib == pytest.approx(predicted_gib(task), rel=0.02)
