"""A launch's folder on a host, while the agent's answers arrive in a thread."""

import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import cast

from shardtune.workers.config.allowlist import Allowed
from shardtune.workers.config.settings import WorkerSettings
from shardtune.workers.gang.messages import StageOrder
from shardtune.workers.launchers.base import LocalRanks
from shardtune.workers.node.agent_line import AgentConnection
from shardtune.workers.node.launch_here import NodeLaunch
from tests.support.service.simulated_worker import FINGERPRINT


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
