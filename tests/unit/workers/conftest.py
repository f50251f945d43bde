import json
import os
import uuid

import pytest

from shardtune.api_schemas.machines.hardware import Fingerprint
from shardtune.api_schemas.trials.leases import TrialTask
from shardtune.workers.launchers.cold import ColdLauncher
from shardtune.workers.launchers.fork_server import ForkServerLauncher
from shardtune.workers.launchers.processes import kill_tagged, tagged_processes
from shardtune.workers.trial_dir import TrialDir
from tests.support.workers.worker_fakes import FAKE_HOST, make_task


@pytest.fixture
def task() -> TrialTask:
    return make_task()


@pytest.fixture
def fingerprint() -> Fingerprint:
    names = ("driver", "cuda", "nccl", "torch", "deepspeed", "transformers", "gpu_memory_gib")
    return Fingerprint(
        **dict.fromkeys(names),
        device="cpu",
        gpu="cpu",
        gpu_count=0,
        python="3.11",
        kernel="6",
        cpu="x",
        cpu_count=2,
        host_memory_gib=8,
    )


@pytest.fixture
def directory(tmp_path, task, fingerprint) -> TrialDir:
    return TrialDir.create(tmp_path / "work", "run-1", task, fingerprint, min_free_gib=0)


@pytest.fixture
def mark():
    """A device pool of this test's own; nothing of it may live after the test."""
    name = f"test-{uuid.uuid4().hex[:12]}"
    yield name
    live_pids = tagged_processes(name)
    kill_tagged(name)
    assert not live_pids, f"processes {live_pids} were left behind"


@pytest.fixture
def warm(tmp_path, mark):
    """Makes a warm launcher whose ranks act as told; every one is closed at the end."""
    launchers = []

    def make(*acts: str, dying_s: float = 3.0) -> ForkServerLauncher:
        environment = {**os.environ, "FAKE_ACTS": json.dumps(acts)}
        log_path = tmp_path / "host.log"
        launchers.append(
            ForkServerLauncher(environment, mark, log_path, ready_timeout_s=30, command=FAKE_HOST, dying_s=dying_s)
        )
        return launchers[-1]

    yield make
    for launcher in launchers:
        launcher.close()


@pytest.fixture
def cold(mark):
    """Make launchers of cold starts."""
    launchers = []

    def make(*acts: str) -> ColdLauncher:
        launchers.append(ColdLauncher({**os.environ, "FAKE_ACTS": json.dumps(acts)}, mark, command=FAKE_HOST))
        return launchers[-1]

    yield make
    for launcher in launchers:
        launcher.close()
