"""A model of an installed package (LoRA on a frozen Llama) under every backend: the same training, less memory."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from shardtune.api_schemas.training.models import ModelSpec, ModelSummary
from shardtune.api_schemas.trials.failures import FailureKind
from shardtune.api_schemas.trials.leases import ModelSummaryTask, ResumeTask, TrialTask
from shardtune.api_schemas.trials.rank_reports import RankReport
from shardtune.api_schemas.trials.resume_check import ResumePlan
from shardtune.tuner.prediction import learning, traced_shape
from shardtune.tuner.prediction.calibration import NO_CALIBRATIONS
from shardtune.workers.trial_dir import TrialDir
from tests.rank.helpers import custom_model_rank
from tests.support.long_run import IS_LONG, telling
from tests.support.ranks.tiny_tasks import tiny_task

pytestmark = pytest.mark.ranks

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_model"
STRATEGIES = {
    "ddp": {"kind": "ddp"},
    **({"zero2": {"kind": "zero", "stage": 2}} if IS_LONG else {}),
    "zero3": {"kind": "zero", "stage": 3},
    "fsdp2": {"kind": "fsdp2", "dp_shard": 2},
}
RESTARTED = ("zero3", "fsdp2") if IS_LONG else ("fsdp2",)
"""Frozen weights under ZeRO-2, and ZeRO-3's checkpoint of them, are also those of adapters (`test_resume_check`)."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Trial directories after their runs, by what ran there."""
    root = tmp_path_factory.mktemp("own")
    shutil.copytree(EXAMPLE, root / "source")
    site = root / "site"
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*install, "--target", str(site), str(root / "source")], check=True, timeout=120)
    own = ModelSpec(name="lora", entry_point="lora-llama", config={"layers": 2})
    expected_tiny_task = tiny_task({"kind": "ddp"}, parity_steps=4, micro_batch=2)
    tasks = {
        name: tiny_task(strategy, parity_steps=4, micro_batch=2).model_copy(update={"model": own})
        for name, strategy in STRATEGIES.items()
    }
    unknown = {"model": ModelSpec(name="x", entry_point="no-such")}
    tasks |= {"unknown": expected_tiny_task.model_copy(update=unknown)}
    created = {}
    for name, task in [
        *tasks.items(),
        ("model_summary", ModelSummaryTask(model=own, workload=expected_tiny_task.workload)),
    ]:
        created[name] = root / name
        created[name].mkdir()
        (created[name] / "task.json").write_text(task.model_dump_json())
    for name in RESTARTED:
        created[f"restart {name}"] = root / f"restart-{name}"
        created[f"restart {name}"].mkdir()
        task = ResumeTask(trial=tasks[name], plan=ResumePlan(most_steps=8, steps_after=3))
        (created[f"restart {name}"] / "task.json").write_text(task.model_dump_json())
    for folder in (*created.values(), *(created[f"restart {name}"] for name in RESTARTED)):
        custom_model_rank.run_ranks(folder, site)
    return created


def report(folder: Path) -> RankReport:
    return RankReport.model_validate_json((folder / "rank_0.json").read_text())


def smallest_peak(folder: Path) -> float:
    """GiB at the peak of the rank that held least."""
    reports = [RankReport.model_validate_json(path.read_text()) for path in folder.glob("rank_[0-9].json")]
    peaks = [each.memory.peak_allocated_gib for each in reports if each.memory is not None]
    return min(peak for peak in peaks if peak is not None)


@pytest.mark.parametrize("name", telling(["zero2", "zero3", "fsdp2"], ["zero3", "fsdp2"]))
def test_frozen_parameters_train_the_same_under_every_backend(folders: dict[str, Path], name: str) -> None:
    reference, other = report(folders["ddp"]), report(folders[name])
    assert other.status == "complete", other.failure
    for ours, theirs in zip(reference.trajectory, other.trajectory, strict=True):
        assert theirs.loss == pytest.approx(ours.loss, rel=1e-5)
        assert theirs.grad_norm == pytest.approx(ours.grad_norm, rel=1e-4)
        assert theirs.parameter_square_sum == pytest.approx(ours.parameter_square_sum, rel=1e-6)


def test_what_is_frozen_has_no_optimizer_state(folders: dict[str, Path]) -> None:
    model_summary = ModelSummary.model_validate_json((folders["model_summary"] / "model_summary.json").read_text())
    assert model_summary.trainable < model_summary.parameters / 10
    memory = report(folders["ddp"]).memory
    assert memory is not None and memory.peak_allocated_gib is not None
    assert memory.peak_allocated_gib < 16 * model_summary.parameters / 2**30


def test_an_entry_point_that_is_not_installed_is_named_with_those_that_are(folders: dict[str, Path]) -> None:
    failure = report(folders["unknown"]).failure
    assert failure is not None and failure.kind is FailureKind.CRASH
    assert "no-such" in failure.message and "lora-llama" in failure.message


@pytest.mark.parametrize("name", telling(["zero3", "fsdp2"], ["fsdp2"]))
def test_frozen_parameters_go_on_from_a_checkpoint(folders: dict[str, Path], name: str) -> None:
    directory = TrialDir(folders[f"restart {name}"])
    before, after = directory.first_report(0), directory.report(0)
    assert before is not None and after is not None and after.status == "complete", after
    assert [step.step for step in after.trajectory] == [8, 9, 10]
    for ours, theirs in zip(before.trajectory, after.trajectory, strict=True):
        assert theirs.loss == pytest.approx(ours.loss, rel=1e-5)
        assert theirs.parameter_square_sum == pytest.approx(ours.parameter_square_sum, rel=1e-6)


def test_a_traced_step_predicts_the_peak_under_every_backend(folders: dict[str, Path]) -> None:
    model_summary = ModelSummary.model_validate_json((folders["model_summary"] / "model_summary.json").read_text())
    assert model_summary.step_trace is not None, model_summary.trace_failure
    for name in STRATEGIES:
        task = TrialTask.model_validate_json((folders[name] / "task.json").read_text())
        shape = traced_shape.of_study(task.model, model_summary)
        assert shape is not None
        result = learning.predict_trial(shape, task.workload, task.cluster, task.config, NO_CALIBRATIONS)
        assert result is not None
        # Under FSDP2 one run in three of a small model peaks 3 to 12 % higher, on one rank or the other.
        peak, most_above = smallest_peak(folders[name]), 0.1 if name == "fsdp2" else 0.05
        assert (1 - most_above) * peak <= result.memory_gib <= 1.05 * peak, name
