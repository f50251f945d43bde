"""`ray_job.py` on a Ray cluster of this machine: it trains with real ranks, and ends with the code of the node that failed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.values.launcher_exports import exported, written
from tests.support.values.synthetic_studies import CPU

pytest.importorskip("ray")
pytestmark = [
    pytest.mark.ranks,
    pytest.mark.timeout(600),
    pytest.mark.skipif(os.environ.get("SHARDTUNE_TEST_LONG") != "1", reason="two Ray clusters: make test-long"),
]
RAY = {
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": "0123456789abcdef0123456789abcdef",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_raylet_start_wait_time_s": "200",
    "RAY_enable_worker_prestart": "0",
}


def submitted(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment |= {"PYTHON": sys.executable, "HOME": str(folder), **RAY}
    return subprocess.run(
        [sys.executable, "ray_job.py", *arguments], cwd=folder, env=environment,
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip


def test_a_ray_job_trains_on_the_cluster_and_tells_how_its_nodes_ended(tmp_path: Path) -> None:
    written(exported("ray", CPU), tmp_path)
    trained = submitted(tmp_path, "--steps", "2")
    assert trained.returncode == 0, trained.stdout + trained.stderr
    assert "step 1: loss" in trained.stdout + trained.stderr
    (tmp_path / "launch.sh").write_text("exit 7\n")
    assert submitted(tmp_path).returncode == 7
