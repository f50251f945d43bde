"""Trials on one CUDA GPU: real forks, real OOM, real offload. One GPU shards nothing, so this says nothing of scaling."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shardtune.api_schemas.hardware import Inventory
from shardtune.api_schemas.leases import TrialTask
from shardtune.api_schemas.models import ModelProfile, preset
from shardtune.api_schemas.studies import Objective
from shardtune.tuner.prediction import memory_gate
from shardtune.tuner.prediction.calibration import MemoryCalibration
from shardtune.tuner.prediction.traced_shape import of_study

pytestmark = pytest.mark.gpu

DDP: dict[str, Any] = {"kind": "ddp"}
FSDP2: dict[str, Any] = {"kind": "fsdp2", "dp_shard": 1}
FSDP1: dict[str, Any] = {"kind": "fsdp1", "dp_shard": 1}
ZERO3: dict[str, Any] = {"kind": "zero", "stage": 3}


@pytest.fixture(scope="module")
def inventory() -> Inventory:
    printed = subprocess.run(
        [sys.executable, "-m", "shardtune.workers", "detect", "--ranks", "1", "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    found = Inventory.model_validate_json(printed.stdout)
    if found.cluster.device != "cuda":
        pytest.skip("no CUDA GPU here")
    return found


def task(inventory: Inventory, strategy: dict[str, Any], **config: Any) -> TrialTask:
    if strategy["kind"] == "zero" and inventory.fingerprint.deepspeed is None:
        pytest.skip("deepspeed is not installed here")
    return TrialTask.model_validate(
        {
            "model": preset("llama-3.2-1b").model_dump(),
            "workload": {
                "sequence_length": 1024,
                "global_batch": config.pop("global_batch", 4),
                "recipe": "bf16-mixed",
            },
            "cluster": inventory.cluster.model_copy(update={"gpus_per_node": 1, "nodes": 1}).model_dump(),
            "config": {"strategy": strategy, **config},
        }
    )


def run(task: TrialTask, folder: Path) -> tuple[int, dict[str, Any]]:
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
        str(folder / "worker"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    return done.returncode, json.loads(done.stdout)


def test_a_fork_after_the_imports_can_use_the_gpu(inventory: Inventory) -> None:
    host = subprocess.run(
        [sys.executable, "-m", "shardtune.workers.rank.warm.host"], stdin=subprocess.DEVNULL, capture_output=True
    )
    ready = json.loads(host.stdout.splitlines()[0])
    assert ready["fork_safe"], ready["reason"]


@pytest.mark.parametrize("strategy", [DDP, ZERO3 | {"stage": 2}, FSDP2, FSDP1], ids=lambda strategy: strategy["kind"])
@pytest.mark.parametrize("checkpointing", ["none", "selective", "full"])
def test_every_checkpointing_trains(
    inventory: Inventory, strategy: dict[str, Any], checkpointing: str, tmp_path: Path
) -> None:
    code, measured = run(task(inventory, strategy, activation_checkpointing=checkpointing), tmp_path)
    assert code == 0, measured
    memory = measured["memory"]
    assert 0 < memory["peak_allocated_gib"] <= memory["peak_reserved_gib"] <= memory["device_used_gib"]


@pytest.mark.parametrize(
    "strategy",
    [
        FSDP2 | {"cpu_offload": True},
        FSDP1 | {"cpu_offload": True},
        ZERO3 | {"offload_optimizer": {}},
        ZERO3 | {"offload_param": {}},
    ],
    ids=["fsdp2", "fsdp1", "zero-optimizer", "zero-parameters"],
)
def test_offload_trains(inventory: Inventory, strategy: dict[str, Any], tmp_path: Path) -> None:
    code, measured = run(task(inventory, strategy), tmp_path)
    assert code == 0, measured


@pytest.mark.parametrize(
    "strategy", [DDP, FSDP2, FSDP1 | {"use_orig_params": True}], ids=lambda strategy: strategy["kind"]
)
def test_compiled_blocks_train(inventory: Inventory, strategy: dict[str, Any], tmp_path: Path) -> None:
    code, measured = run(task(inventory, strategy, compile=True), tmp_path)
    assert code == 0, measured


def test_running_out_of_device_memory_is_infeasible_not_a_crash(inventory: Inventory, tmp_path: Path) -> None:
    code, failure = run(task(inventory, DDP, micro_batch=512, global_batch=512), tmp_path)
    assert (code, failure["kind"]) == (3, "oom")


@pytest.mark.parametrize("strategy", [DDP, ZERO3, FSDP2, FSDP1], ids=lambda strategy: strategy["kind"])
def test_the_gate_lets_pass_what_fits(inventory: Inventory, strategy: dict[str, Any], tmp_path: Path) -> None:
    trial = task(inventory, strategy)
    profiled = subprocess.run(
        [sys.executable, "-c", PROFILE], input=trial.model_dump_json(), capture_output=True, text=True, check=True
    )
    code, measured = run(trial, tmp_path)
    assert code == 0, measured
    used = measured["memory"]["device_used_gib"]
    shape = of_study(trial.model, ModelProfile.model_validate_json(profiled.stdout))
    exactly = trial.cluster.model_copy(update={"memory_gib": used})
    everything = Objective(memory_headroom=0.0)
    assert memory_gate.gate(trial.config, shape, trial.workload, exactly, everything, MemoryCalibration()) is None


PROFILE = """
import sys
from shardtune.api_schemas.leases import TrialTask
from shardtune.workers.rank import profile
task = TrialTask.model_validate_json(sys.stdin.read())
print(profile.of(task.model, task.workload).model_dump_json())
"""
