"""Defects found by reading and corrected without a GPU, which only a GPU can confirm (docs/contributing/gpu-status.md)."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shardtune.api_schemas.training.models import preset
from shardtune.api_schemas.trials.leases import TrialTask
from shardtune.workers.machine.inventory import Gpus, Libraries, find_gpus, inventory

pytestmark = pytest.mark.gpu

ZERO: dict[str, Any] = {
    "kind": "zero",
    "stage": 2,
    "reduce_bucket_size": 50_000_000,
    "allgather_bucket_size": 50_000_000,
}


@pytest.fixture(scope="module")
def gpus() -> Gpus:
    actual_gpus = find_gpus()
    if not actual_gpus.devices:
        pytest.skip("no CUDA GPU here")
    return actual_gpus


def run(gpus: Gpus, folder: Path, strategy: dict[str, Any], length: int = 512, **environment: str) -> dict[str, Any]:
    """A trial on the first GPU, which must come to its end."""
    cluster = inventory(gpus.for_ranks(1), Libraries(), 1, None).cluster
    task = TrialTask.model_validate(
        {
            "model": preset("llama-tiny").model_dump(),
            "workload": {"sequence_length": length, "global_batch": 4, "precision": "bf16-mixed"},
            "cluster": cluster.model_dump(),
            "config": {"strategy": strategy, "micro_batch": 2},
        }
    )
    file = folder / "trial.json"
    file.write_text(task.model_dump_json())
    command = [
        sys.executable,
        "-m",
        "shardtune.workers",
        "run-trial",
        str(file),
        "--json",
        "--work-dir",
        str(folder / "w"),
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=280, check=False, env={**os.environ, **environment}
    )
    assert done.returncode == 0, done.stderr[-4000:]
    measured: dict[str, Any] = json.loads(done.stdout)
    return measured


@pytest.mark.parametrize("stage", [1, 2])
def test_zero_trains_where_gpus_are_named_by_uuid(gpus: Gpus, tmp_path: Path, stage: int) -> None:
    measured = run(gpus, tmp_path, ZERO | {"stage": stage}, CUDA_VISIBLE_DEVICES=gpus.uuids[0])
    assert measured["conditions"]["devices"][0]["uuid"] == gpus.uuids[0]


def test_zero_trains_on_fewer_ranks_than_there_are_gpus(gpus: Gpus, tmp_path: Path) -> None:
    if len(gpus.devices) < 2:
        pytest.skip("one GPU: there are no fewer ranks")
    run(gpus, tmp_path, ZERO)


def test_the_last_gpu_by_nvml_s_numbers_is_the_one_that_works(gpus: Gpus, tmp_path: Path) -> None:
    last = Gpus(driver=gpus.driver, devices=gpus.devices[-1:])
    measured = run(last, tmp_path, {"kind": "ddp"}, CUDA_VISIBLE_DEVICES=str(last.devices[0].index))
    (device,) = measured["conditions"]["devices"]
    assert device["uuid"] == last.uuids[0]
    assert device["foreign_processes"] == []


def test_short_steps_are_measured_for_a_second(gpus: Gpus, tmp_path: Path) -> None:
    measured = run(gpus, tmp_path, {"kind": "ddp"}, length=64)
    assert measured["measured_steps"] * measured["step_time_s"] > 0.5


def test_a_long_sequence_is_believed(gpus: Gpus, tmp_path: Path) -> None:
    assert run(gpus, tmp_path, {"kind": "ddp"}, length=2048)["suspect"] is None
