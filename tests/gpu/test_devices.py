"""NVML's readings of a real GPU around real runs: the watch, and what a trial records of it."""

import json
import subprocess
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import pynvml
import pytest

from shardtune.api_schemas.training.models import preset
from shardtune.api_schemas.trials.leases import TrialTask
from shardtune.workers.machine.device_health import GpuObservation, broken_devices, occupied_devices
from shardtune.workers.machine.device_watch import DevicesUnfit, DeviceWatch
from shardtune.workers.machine.inventory import Libraries, find_gpus, inventory
from shardtune.workers.machine.nvml_watch import Watch

pytestmark = pytest.mark.gpu

_HOLD_MEMORY = """
import sys, torch
held = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def gpu() -> str:
    gpus = find_gpus()
    if not gpus.devices:
        pytest.skip("no CUDA GPU here")
    return gpus.uuids[0]


def test_a_real_device_answers_everything_that_is_judged(gpu: str) -> None:
    pynvml.nvmlInit()
    look = GpuObservation.model_validate(list(islice(Watch([gpu]).observations(), 2))[1])
    (device,) = look.devices
    assert device.lost is None and device.memory_used_bytes > 0
    assert device.processes is not None and device.clock_reasons is not None
    assert broken_devices(look) == []


def test_a_process_on_the_gpu_keeps_work_away_until_it_ends(gpu: str, tmp_path: Path) -> None:
    watch = DeviceWatch([gpu], tmp_path, patience_s=5)
    watch.start()
    try:
        watch.require_fit(lambda: False)
        with subprocess.Popen(
            [sys.executable, "-c", _HOLD_MEMORY], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as other:
            assert other.stdout is not None and other.stdout.readline() == b"held\n"
            with pytest.raises(DevicesUnfit, match=r"CUDA_VISIBLE_DEVICES|more than before"):
                while True:
                    watch.require_fit(lambda: False)
        watch.require_fit(lambda: False)
        assert occupied_devices(watch.between(0, float("inf"))[-1], {}) == []
    finally:
        watch.close()


def test_a_trial_records_the_conditions_it_ran_under(gpu: str, tmp_path: Path) -> None:
    cluster = inventory(find_gpus().for_ranks(1), Libraries(), 1, None).cluster
    task = TrialTask.model_validate(
        {
            "model": preset("llama-tiny").model_dump(),
            "workload": {"sequence_length": 128, "global_batch": 8, "precision": "bf16-mixed"},
            "cluster": cluster.model_dump(),
            "config": {"strategy": {"kind": "ddp"}, "micro_batch": 4},
        }
    )
    (tmp_path / "trial.json").write_text(task.model_dump_json())
    command = [
        sys.executable,
        "-m",
        "shardtune.workers",
        "run-trial",
        str(tmp_path / "trial.json"),
        "--json",
        "--ranks",
        "1",
    ]
    command += ["--work-dir", str(tmp_path / "worker")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    measured: dict[str, Any] = json.loads(done.stdout)
    (device,) = measured["conditions"]["devices"]
    assert device["uuid"] == gpu
    assert device["foreign_processes"] == [] and device["xids"] == []
    assert len(measured["conditions"]["rank_pace_s"]) == 1
    assert measured["suspect"] is None
