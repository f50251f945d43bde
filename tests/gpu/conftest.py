"""The machine's GPUs in the hands of one module's tests: a fork server, held once for all their trials."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardtune.workers.agent.attempt import Workplace
from shardtune.workers.config.settings import WorkerSettings
from shardtune.workers.machine import device_hold, library_probe
from shardtune.workers.machine.inventory import find_gpus, inventory
from tests.gpu.gpu_machine import GpuMachine

TRY_ON_CPU = "SHARDTUNE_TRY_GPU_TESTS_ON_CPU"
"""Set: the trials of these tests run on CPU ranks, to see that the tests themselves are whole. It proves nothing of a GPU."""


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GpuMachine]:
    gpus = find_gpus()
    if not gpus.devices and TRY_ON_CPU not in os.environ:
        pytest.skip("no CUDA GPU here")
    yield from _open_machine(tmp_path_factory.mktemp("gpu"), len(gpus.devices) or 2)


def _open_machine(folder: Path, ranks: int) -> Iterator[GpuMachine]:
    settings = WorkerSettings(work_dir=folder)
    with device_hold.hold_devices(settings, ranks) as (gpus, launcher):
        prepared = device_hold.prepare(settings, launcher, lambda: False)
        assert prepared is not None
        offered = inventory(gpus, library_probe.of_prepared(prepared, gpus, ranks), ranks, None)
        place = Workplace(folder, launcher, offered.fingerprint, ranks, offered.peak_flops, 0.1)
        yield GpuMachine(place, offered.cluster.model_dump(mode="json"), offered.fingerprint)
