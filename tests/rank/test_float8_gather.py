"""FSDP2's gathers in float8: the training is the one without them, and scales that are not renewed are noticed."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from shardtune.api_schemas.trials.failures import FailureKind
from shardtune.api_schemas.trials.leases import TrialTask
from shardtune.api_schemas.trials.rank_reports import RankReport
from shardtune.tuner.verdict import parity
from shardtune.workers.rank.classify import NumericsError
from shardtune.workers.rank.model import build, float8
from shardtune.workers.rank.strategies import sharded_checkpoint
from shardtune.workers.rank.strategies.float8_gather import Float8Gather
from tests.rank.helpers import faulty_ranks
from tests.rank.helpers.fork_server_process import HostProcess
from tests.support.long_run import wide
from tests.support.processes import preloaded_forks
from tests.support.ranks.predicted_memory import predicted_gib
from tests.support.ranks.reference_training import deviation, train
from tests.support.ranks.tiny_tasks import LLAMA, tiny_task

pytestmark = pytest.mark.ranks

MODEL = LLAMA | {"num_hidden_layers": 2}
CAST: dict[str, Any] = {"kind": "fsdp2", "dp_shard": 2}
GATHERED = CAST | {"float8_gather": True}
SAME = {"loss": 1e-6, "grad_norm": 1e-5, "parameter_sum": 1e-6, "parameter_square_sum": 1e-6}
"""Bounds in fp32, where both cast the same values by the same scales."""


def task_of(strategy: dict[str, Any], **changes: Any) -> TrialTask:
    return tiny_task(
        strategy, **({"model": MODEL, "parity_steps": 4, "float8": "tensorwise", "micro_batch": 2} | changes)
    )


@pytest.fixture(scope="module")
def report_of(host: HostProcess) -> Callable[[TrialTask], RankReport]:
    """Report of rank 0 of a trial; equal tasks run once."""

    @functools.cache
    def of_text(text: str) -> RankReport:
        report = host.run(TrialTask.model_validate_json(text))[0]
        assert report.status == "complete", report.failure
        return report

    return lambda task: of_text(task.model_dump_json())


@pytest.mark.parametrize(
    ("strategy", "changes"),
    [
        pytest.param({}, {}, id="plain"),
        pytest.param({"reshard_after_forward": False, "grad_sync": "last", "blocks_per_unit": 2}, {}, id="kept, last"),
        pytest.param({}, {"activation_checkpointing": "full", "max_grad_norm": 0.1}, id="checkpointed, clipped"),
        pytest.param({"dp_replicate": 2, "grad_sync": "reduce_scatter"}, {"ranks": 4, "micro_batch": 1}, id="hsdp"),
        wide({}, {"activation_checkpointing": "selective"}, id="selective"),
        wide({}, {"optimizer": "muon"}, id="muon"),
        wide({}, {"compile": True}, id="compiled"),
    ],
)
def test_weights_cast_before_a_gather_train_as_those_cast_after_it(
    report_of: Callable[[TrialTask], RankReport], strategy: dict[str, Any], changes: dict[str, Any]
) -> None:
    after, before = (report_of(task_of(kind | strategy, **changes)).trajectory for kind in (CAST, GATHERED))
    differences = deviation(before, after)
    assert all(differences[name] <= SAME[name] for name in SAME), differences


@pytest.mark.parametrize("precision", ["fp32", "bf16-mixed", "bf16-true"])
def test_training_stays_within_the_bounds_of_float8(
    report_of: Callable[[TrialTask], RankReport], precision: str
) -> None:
    """Under bf16-mixed the float32 masters are cast, where others cast their bfloat16 copies: that is not the same."""
    task = task_of(GATHERED, precision=precision)
    bounds = parity.tolerance(task.workload.precision, task.workload.optimizer, task.workload.float8)
    trajectory = report_of(task).trajectory
    for expected, actual in zip(train(task), trajectory, strict=True):
        assert parity.step_difference(expected, actual, bounds.at_step(expected.step), "the reference") is None


def test_gathered_weights_take_the_predicted_memory(report_of: Callable[[TrialTask], RankReport]) -> None:
    """Kept after forward, so that all of them exist at once: a byte for each element, where float32 has four."""
    changes = {
        "model": MODEL | {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 4, "vocab_size": 64}
    }
    peaks = []
    for kind in (CAST, GATHERED):
        task = task_of(kind | {"reshard_after_forward": False}, parity_steps=2, **changes)
        memory = report_of(task).memory
        assert memory is not None and memory.peak_allocated_gib is not None
        peaks.append(memory.peak_allocated_gib)
        assert predicted_gib(task) == pytest.approx(memory.peak_allocated_gib, rel=0.1), kind
    assert peaks[1] < 0.9 * peaks[0], peaks


def test_scales_that_are_not_renewed_are_noticed(report_of: Callable[[TrialTask], RankReport], tmp_path: Path) -> None:
    """A planted fault: weights outgrow the scales with which training began. The bounds of float8 are wider than that,
    so that only the comparison with casts after the gather notices."""
    task = task_of(GATHERED)
    (tmp_path / "task.json").write_text(task.model_dump_json())
    faulty_ranks.run_ranks("kept_scales", tmp_path)
    faulty = RankReport.model_validate_json((tmp_path / "rank_0.json").read_text())
    assert faulty.status == "complete", faulty.failure
    differences = deviation(faulty.trajectory, report_of(task_of(CAST)).trajectory)
    assert differences["loss"] > 3 * SAME["loss"] and differences["grad_norm"] > 3 * SAME["grad_norm"], differences


def test_rows_that_ranks_cannot_divide_evenly_are_rejected(host: HostProcess) -> None:
    report = host.run(task_of(GATHERED | {"dp_shard": 3}, ranks=3, global_batch=6))[0]
    assert report.failure is not None and report.failure.kind is FailureKind.ILLEGAL
    assert "float8_gather (true) with dp_shard (3)" in report.failure.message
    assert "q_proj of the blocks has 64" in report.failure.message


def test_units_that_gloo_cannot_send_are_rejected_on_cpu_ranks() -> None:
    """Without a norm or a bias all numbers of a unit are float8, which gloo does not know; with one they are sent as bytes."""
    bare, biased = (torch.nn.Sequential(torch.nn.Linear(64, 64, bias=bias)) for bias in (False, True))
    float8.convert([biased], "tensorwise", torch.device("cpu"), gather_shards=2)
    with pytest.raises(
        ValueError, match=r"float8_gather \(true\) on CPU ranks .* block 0 has none.*; set float8_gather to"
    ):
        float8.convert([bare], "tensorwise", torch.device("cpu"), gather_shards=2)
    float8.convert([bare], "tensorwise", torch.device("cpu"))


def test_a_model_without_cast_weights_is_rejected() -> None:
    network = build.build(task_of(CAST).model, task_of(CAST).workload)
    with pytest.raises(NumericsError, match=r"float8_gather \(true\).*no weight of the sharded model is cast"):
        Float8Gather(network, gathers=True)
    Float8Gather(network, gathers=False).refresh()


def test_a_checkpoint_has_plain_weights_and_loads_into_cast_ones(tmp_path: Path) -> None:
    """A run without these gathers, or any other program, can load it."""
    preloaded_forks.ranks(_save_and_load, tmp_path / "checkpoint", logs=tmp_path)
    files = list((tmp_path / "checkpoint").glob("*.distcp"))
    assert len(files) == 2 and all(b"torchao" not in file.read_bytes() for file in files)
    stored = FileSystemReader(tmp_path / "checkpoint").read_metadata().state_dict_metadata
    assert {"model.0.weight", "model.0.bias"} <= stored.keys()


def _save_and_load(folder: Path) -> None:
    torch.distributed.init_process_group("gloo")
    model = torch.nn.Sequential(torch.nn.Linear(32, 64))
    float8.convert([model], "tensorwise", torch.device("cpu"), gather_shards=2)
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    optimizer, gather = torch.optim.AdamW(model.parameters(), lr=0.1), Float8Gather(model, gathers=True)
    before = _losses(model, optimizer, gather, steps=2)
    sharded_checkpoint.save(model, [optimizer], folder)
    after = _losses(model, optimizer, gather, steps=2)
    sharded_checkpoint.load(model, [optimizer], folder)
    gather.refresh()
    assert _losses(model, optimizer, gather, steps=2) == after != before


def _losses(model: torch.nn.Module, optimizer: torch.optim.Optimizer, gather: Float8Gather, steps: int) -> list[float]:
    losses = []
    for _ in range(steps):
        loss = model(torch.linspace(-1, 1, 16 * 32).reshape(16, 32)).square().mean()
        loss.backward()
        optimizer.step()
        gather.refresh()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses
