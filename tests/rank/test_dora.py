"""DoRA trains the same on every backend as in one process over the whole global batch, in the predicted memory."""

from typing import Any

import pytest

from shardtune.api_schemas.trials.failures import FailureKind
from tests.rank.helpers.adapter_tasks import BF16, FP32, STRATEGIES, TWO_BLOCKS
from tests.rank.helpers.fork_server_process import HostProcess
from tests.support.long_run import telling, wide
from tests.support.ranks.predicted_memory import predicted_gib
from tests.support.ranks.reference_training import deviation, train
from tests.support.ranks.tiny_tasks import GPT2, tiny_task

pytestmark = pytest.mark.ranks

CHANGES: dict[str, Any] = {
    "model": TWO_BLOCKS,
    "adapter": {"kind": "lora", "rank": 4, "alpha": 8.0, "dora": True},
    "parity_steps": 3,
    "micro_batch": 2,
    "max_grad_norm": 0.05,
}
TRAINED = [name for name in STRATEGIES if not name.startswith("fsdp1")]


@pytest.mark.parametrize("name", TRAINED)
def test_dora_trains_the_same_on_every_backend(host: HostProcess, name: str) -> None:
    task = tiny_task(STRATEGIES[name], **CHANGES)
    reports = host.run(task)
    assert reports[0].status == "complete", reports[0].failure
    differs = deviation(reports[0].trajectory, train(task))
    assert all(differs[quantity] <= bound for quantity, bound in FP32.items()), differs
    peaks = [report.memory.peak_allocated_gib for report in reports if report.memory is not None]
    # FSDP2's peak varies from run to run, on one rank or the other: 2.14 to 2.39 MiB in 14 runs.
    smallest = min(peak for peak in peaks if peak is not None)
    # Of ZeRO-2's bucket a model as small as this one needs less than is predicted.
    assert predicted_gib(task) == pytest.approx(smallest, rel=0.2 if name == "zero-2" else 0.1)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        # Two at once.
        ("fsdp2", {"model": GPT2, "activation_checkpointing": "full"}),
        ("zero-3", {"loss": "chunked", "loss_chunk": 24, "activation_checkpointing": "full"}),
        wide("ddp", {"compile": True}),
        wide("fsdp2", {"compile": True}),
        wide("fsdp2", {"context_parallel": 2, "activation_checkpointing": "full"}),
        wide("zero-1", {"activation_checkpointing": "selective"}),
        wide("fsdp2", {"micro_batch": 1, "activation_checkpointing": "full"}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else value,
)
def test_no_knob_changes_the_training_of_magnitudes(host: HostProcess, name: str, changes: dict[str, Any]) -> None:
    task = tiny_task(STRATEGIES[name], **CHANGES | changes)
    report = host.run(task)[0]
    assert report.status == "complete", report.failure
    differs = deviation(report.trajectory, train(task))
    assert all(differs[quantity] <= bound for quantity, bound in FP32.items()), differs


@pytest.mark.parametrize("name", telling(TRAINED, ["fsdp2"]))
def test_dora_in_bf16_trains_within_the_stated_bound(host: HostProcess, name: str) -> None:
    task = tiny_task(STRATEGIES[name], **CHANGES, precision="bf16-mixed")
    report = host.run(task)[0]
    assert report.status == "complete", report.failure
    differs = deviation(report.trajectory, train(task))
    assert all(differs[quantity] <= bound for quantity, bound in BF16.items()), differs


def test_fsdp1_is_rejected_before_training(host: HostProcess) -> None:
    failure = host.run(tiny_task(STRATEGIES["fsdp1"], **CHANGES))[0].failure
    assert failure is not None and failure.kind is FailureKind.ILLEGAL and "dora: true" in failure.message
