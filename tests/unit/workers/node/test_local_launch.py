"""A launch's folder on a host, while the agent's answers arrive in a thread."""

import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from shardtune.api_schemas.strategies import TrialConfig
from shardtune.workers.config.allowlist import Allowed
from shardtune.workers.config.settings import WorkerSettings
from shardtune.workers.gang.messages import StageOrder
from shardtune.workers.launchers.base import LocalRanks
from shardtune.workers.launchers.operators import OperatorBuild
from shardtune.workers.node.agent_line import AgentConnection
from shardtune.workers.node.launch_here import NodeLaunch
from tests.support.service.simulated_worker import FINGERPRINT
from tests.support.workers.worker_fakes import make_task


def test_a_renewal_writes_into_no_folder_that_is_being_cleared(tmp_path: Path) -> None:
    settings = WorkerSettings(work_dir=tmp_path, min_free_gib=0)
    line = cast(AgentConnection, SimpleNamespace(ranks_end_s=time.time() + 60))
    launch = NodeLaunch(settings, Allowed(), cast(LocalRanks, None), line)
    order = StageOrder(order=1, name="run-1", task=None, fingerprint=FINGERPRINT, resumes=False)
    over = threading.Event()

    def renew() -> None:
        while not over.is_set():
            launch.move_deadline(time.time() + 60)

    renewing = threading.Thread(target=renew)
    renewing.start()
    try:
        for _ in range(300):
            launch.stage(order)
    finally:
        over.set()
        renewing.join()
    assert [path.name for path in (tmp_path / "run-1").iterdir()] != []


def test_a_host_whose_build_failed_rejects_the_launch_before_any_rank(tmp_path: Path) -> None:
    """Its first rank would build again, in the run's time, while those of the other hosts wait."""
    strategy = {"kind": "zero", "stage": 3, "offload_optimizer": {"device": "cpu"}}
    task = make_task(config=TrialConfig.model_validate({"strategy": strategy, "micro_batch": 1}))
    build = OperatorBuild(lambda give_up: "install g++")
    build.run(lambda: False)
    settings = WorkerSettings(work_dir=tmp_path, min_free_gib=0)
    launch = NodeLaunch(settings, Allowed(), cast(LocalRanks, None), cast(AgentConnection, None), build)
    with pytest.raises(ValueError, match=r"could not build: install g\+\+"):
        launch.stage(StageOrder(order=1, name="run-1", task=task, fingerprint=FINGERPRINT, resumes=False))
    assert not (tmp_path / "run-1").exists()
