"""A launcher passes on each host's observation of a launch."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardtune.api_schemas.machines.conditions import Conditions, DeviceSeen, NodeConditions
from shardtune.workers.launch import Launch
from shardtune.workers.launchers.local import LocalLauncher
from shardtune.workers.machine import conditions
from shardtune.workers.machine.conditions import HostObserver, may_use_gpus
from tests.support.workers.worker_fakes import FAKE_HOST


def node(host: str, first_rank: int = 0, **values: int) -> NodeConditions:
    return NodeConditions(host=host, first_rank=first_rank, ranks=2, **values)


def seen_by(host: str, first_rank: int, cores: float | None, pace: float) -> Conditions:
    return Conditions(nodes=(node(host, first_rank),), foreign_cpu_cores=cores, rank_pace_s=(pace, pace))


def test_a_local_launcher_tells_of_its_own_host_once_the_ranks_are_gone(tmp_path: Path, mark: str) -> None:
    environment = {**os.environ, "FAKE_ACTS": json.dumps(["complete"] * 4)}
    observer = HostObserver(None, host="n1")
    launcher = LocalLauncher(
        environment, mark, tmp_path / "log", 30, commands=(FAKE_HOST, FAKE_HOST), observer=observer
    )
    launcher.prepare(lambda: False)
    launcher.launch(tmp_path, Launch.of(4).part(2, 2, {}))
    while len(launcher.exits) < 2:
        launcher.wait(1)
    assert sorted(exit.rank for exit in launcher.exits) == [2, 3] and launcher.conditions() == Conditions()
    launcher.kill()
    (observed,) = launcher.conditions().nodes
    assert (observed.host, observed.first_rank, observed.ranks, observed.oom_kills) == ("n1", 2, 2, 0)
    assert observed.memory_available_gib and launcher.conditions().host_of(3) == "n1"
    launcher.close()


def test_of_several_hosts_the_worst_counts_and_ranks_stay_in_order() -> None:
    joined = Conditions.joined([seen_by("n0", 0, 0.1, 0.01), seen_by("n1", 2, None, 0.02), seen_by("n2", 4, 1.5, 0.03)])
    assert (joined.hosts, joined.foreign_cpu_cores) == (("n0", "n1", "n2"), 1.5)
    assert joined.rank_pace_s == (0.01, 0.01, 0.02, 0.02, 0.03, 0.03)
    assert [joined.host_of(rank) for rank in (0, 3, 6)] == ["n0", "n1", None]
    assert Conditions.joined(()) == Conditions()


def test_what_there_is_to_tell_of_devices_is_kept_where_there_are_too_many() -> None:
    quiet = DeviceSeen(uuid="GPU-1", memory_before_gib=0, throttled_fraction=0.0, power_capped_fraction=None)
    faulty = quiet.model_copy(update={"uuid": "GPU-2", "xids": (79,)})
    joined = Conditions.joined([Conditions(devices=(quiet,) * 256), Conditions(devices=(faulty,))])
    assert len(joined.devices) == 256 and joined.devices[0].uuid == "GPU-2"


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """A process of this user, with the null device open."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as child:
        yield child


def test_a_process_without_a_gpu_is_not_taken_for_one_that_the_driver_names(process: subprocess.Popen[bytes]) -> None:
    """In a container the driver's pids may be the host's, which are those of other processes here."""
    assert not may_use_gpus(process.pid)


def test_a_process_with_a_gpu_is_foreign_until_it_ends(
    process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conditions, "_NVIDIA_MAJOR", os.major(Path(os.devnull).stat().st_rdev))
    assert may_use_gpus(process.pid)
    process.communicate(b"\n")
    assert not may_use_gpus(process.pid)


def test_a_process_that_cannot_be_inspected_counts_as_foreign(
    process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def deny(path: str) -> None:
        raise PermissionError(path)

    monkeypatch.setattr(os, "scandir", deny)
    assert may_use_gpus(process.pid)
