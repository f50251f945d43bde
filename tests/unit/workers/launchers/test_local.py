"""Ranks of a script on one host meet at a store that listens at a loopback address."""

import json
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardtune.workers.launch import Launch, rendezvous
from shardtune.workers.launchers.local import LocalLauncher
from tests.support.workers.worker_fakes import FAKE_HOST


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[LocalLauncher]:
    environment = {**os.environ, "FAKE_ACTS": json.dumps(["complete", "complete", "tell"])}
    mark = f"test-{uuid.uuid4().hex[:12]}"
    made = LocalLauncher(environment, mark, tmp_path / "log", 30, commands=(FAKE_HOST, FAKE_HOST))
    made.prepare(lambda: False)
    yield made
    made.close()


def variables_of(launcher: LocalLauncher, directory: Path, launch: Launch) -> dict[str, str]:
    """Variables of a launch's ranks, once these have ended."""
    launcher.launch(directory, launch)
    while len(launcher.exits) < launch.ranks:
        launcher.wait(1)
    launcher.kill()
    return json.loads((directory / "launch_order.json").read_text())["environment"]


def test_ranks_of_a_script_meet_at_a_loopback_address(launcher: LocalLauncher, tmp_path: Path) -> None:
    """Rank 0 of a script would otherwise serve the store, at every address of the host."""
    (tmp_path / "script.json").write_text("{}")
    for _ in range(2):
        variables = variables_of(launcher, tmp_path, Launch.of(2))
        assert rendezvous("127.0.0.1", 1).items() <= variables.items()
    assert json.loads((tmp_path / "store_order.json").read_text())["address"] == "127.0.0.1"


def test_ranks_of_our_own_meet_at_a_file(launcher: LocalLauncher, tmp_path: Path) -> None:
    assert "TORCHELASTIC_USE_AGENT_STORE" not in variables_of(launcher, tmp_path, Launch.of(2))
    assert not (tmp_path / "store_order.json").exists()


def test_a_rendezvous_of_several_hosts_stays(launcher: LocalLauncher, tmp_path: Path) -> None:
    (tmp_path / "script.json").write_text("{}")
    launch = Launch.of(4).part(0, 2, rendezvous("10.0.0.7", 29500))
    assert variables_of(launcher, tmp_path, launch)["MASTER_ADDR"] == "10.0.0.7"
