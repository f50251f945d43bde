"""Contract of launchers (workers/launchers/base.py), tested on each launcher; the ranks are played."""

import json
import os
import signal
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from shardtune.workers.launch import Launch
from shardtune.workers.launchers.base import Launcher, RankExit
from shardtune.workers.launchers.cold import ColdLauncher
from shardtune.workers.launchers.fork_server import ForkServerLauncher
from shardtune.workers.launchers.local import LocalLauncher
from shardtune.workers.launchers.processes import kill_tagged, tagged_processes
from tests.support.workers.worker_fakes import FAKE_HOST

LAUNCHERS = ("warm", "cold", "local", "local, where forking is unsafe")

Make = Callable[..., Launcher]


@pytest.fixture
def mark() -> Iterator[str]:
    """A device pool of this test's own; nothing of it may live after the test."""
    name = f"test-{uuid.uuid4().hex[:12]}"
    yield name
    live_pids = tagged_processes(name)
    kill_tagged(name)
    assert not live_pids, f"processes {live_pids} were left behind"


@pytest.fixture(params=LAUNCHERS)
def make(request: pytest.FixtureRequest, tmp_path: Path, mark: str) -> Iterator[Make]:
    """Makes the launcher, with ranks that act as told (tests/support/workers/fake_fork_server.py)."""
    gangs: list[Launcher] = []

    def make_launcher(*acts: str) -> Launcher:
        if request.param.endswith("unsafe"):
            acts = (*acts, "fork_unsafe")
        environment, log = {**os.environ, "FAKE_ACTS": json.dumps(acts)}, tmp_path / "host.log"
        if request.param == "warm":
            launcher: Launcher = ForkServerLauncher(environment, mark, log, ready_timeout_s=30, command=FAKE_HOST)
        elif request.param == "cold":
            launcher = ColdLauncher(environment, mark, command=FAKE_HOST)
        else:
            launcher = LocalLauncher(environment, mark, log, 30, commands=(FAKE_HOST, FAKE_HOST))
        launcher.prepare(lambda: False)
        gangs.append(launcher)
        return launcher

    yield make_launcher
    for launcher in gangs:
        launcher.close()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    folder = tmp_path / "run-1"
    folder.mkdir()
    return folder


def ended(launcher: Launcher, ranks: int) -> tuple[RankExit, ...]:
    """Wait until so many ranks have ended."""
    while len(launcher.exits) < ranks:
        launcher.wait(1)
    return launcher.exits


def processes_with(command: list[str]) -> list[psutil.Process]:
    return [process for process in psutil.process_iter(["cmdline"]) if process.info["cmdline"] == command]


def test_every_rank_s_end_is_seen_with_its_code(make: Make, directory: Path) -> None:
    launcher = make("complete", "exit", "killed")
    launcher.launch(directory, Launch.of(3))
    assert set(ended(launcher, 3)) == {RankExit(0, 0), RankExit(1, 7), RankExit(2, -9)}
    assert launcher.lost is None


def test_ranks_know_their_place_and_write_into_the_trial(make: Make, directory: Path) -> None:
    launcher = make("complete", "complete")
    launcher.launch(directory, Launch.of(2))
    ended(launcher, 2)
    assert [json.loads((directory / f"rank_{rank}.json").read_text())["rank"] for rank in (0, 1)] == [0, 1]
    assert (directory / "rank_1.log").read_text() == "rank 1 acts complete\n"


def test_ends_are_those_of_the_present_launch(make: Make, directory: Path) -> None:
    launcher = make("exit")
    launcher.launch(directory, Launch.of(1))
    ended(launcher, 1)
    launcher.kill()
    launcher.launch(directory, Launch.of(1))
    assert ended(launcher, 1) == (RankExit(0, 7),)


def test_waiting_ends_by_itself_while_nothing_happens(make: Make, directory: Path) -> None:
    launcher = make("hang")
    launcher.launch(directory, Launch.of(1))
    launcher.wait(0.05)
    assert launcher.exits == () and launcher.lost is None


def test_a_kill_leaves_nothing_of_the_launch_and_may_be_repeated(make: Make, directory: Path, mark: str) -> None:
    launcher = make("orphan", "hang", "busy")
    helpers = tagged_processes(mark)
    launcher.launch(directory, Launch.of(3))
    ended(launcher, 1)
    assert tagged_processes(mark) > helpers
    for _ in range(2):
        launcher.kill()
        assert tagged_processes(mark) <= helpers


@pytest.mark.parametrize("act", ["daemon", "daemon_and_end"])
def test_what_sheds_session_and_environment_ends_with_the_launch(
    act: str, make: Make, directory: Path, mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_DAEMON_S", seconds := f"600.{uuid.uuid4().int % 10**9}")
    launcher = make(act, "hang")
    helpers, command = tagged_processes(mark), ["sleep", seconds]
    launcher.launch(directory, Launch.of(2))
    while not (launcher.exits if act.endswith("end") else processes_with(command)):
        launcher.wait(0.05)
    launcher.kill()
    assert not processes_with(command)
    assert tagged_processes(mark) <= helpers


def test_after_a_kill_the_next_trial_is_launched(make: Make, directory: Path) -> None:
    launcher = make("busy", "busy")
    launcher.launch(directory, Launch.of(2))
    launcher.kill()
    launcher.prepare(lambda: False)
    launcher.launch(directory, Launch.of(2))
    assert launcher.exits == ()


def test_a_kill_before_any_launch_does_nothing(make: Make, mark: str) -> None:
    launcher = make("complete")
    helpers = tagged_processes(mark)
    launcher.kill()
    assert tagged_processes(mark) == helpers


def test_who_is_ready_stays_ready_at_no_cost(make: Make, mark: str) -> None:
    launcher = make("complete")
    helpers, prepared = tagged_processes(mark), launcher.prepare(lambda: False)
    assert launcher.prepare(lambda: True) == prepared
    assert tagged_processes(mark) == helpers


def test_closing_ends_ranks_and_helpers_and_may_be_repeated(make: Make, directory: Path, mark: str) -> None:
    launcher = make("busy", "hang")
    launcher.launch(directory, Launch.of(2))
    for _ in range(2):
        launcher.close()
        assert tagged_processes(mark) == set()


@pytest.mark.parametrize(("kind", "words"), [("warm", "a rank was stopped"), ("cold", "rank 0 was stopped")])
def test_a_rank_that_is_stopped_ends_the_launch(
    kind: str, words: str, tmp_path: Path, directory: Path, mark: str
) -> None:
    with closing(patient_for_a_moment(kind, tmp_path, mark)) as launcher:
        launcher.prepare(lambda: False)
        helpers = tagged_processes(mark)
        launcher.launch(directory, Launch.of(1))
        while not (log := directory / "rank_0.log").exists() or not log.read_text():
            launcher.wait(0.01)
        for pid in tagged_processes(mark) - helpers:
            os.kill(pid, signal.SIGSTOP)
        while launcher.lost is None:
            launcher.wait(0.05)
        assert launcher.lost.message == words
        launcher.kill()
        assert not tagged_processes(mark) - helpers


def test_a_helper_that_is_stopped_is_lost_and_replaced(tmp_path: Path, directory: Path, mark: str) -> None:
    with closing(patient_for_a_moment("warm", tmp_path, mark)) as launcher:
        launcher.prepare(lambda: False)
        helpers = tagged_processes(mark)
        launcher.launch(directory, Launch.of(1))
        for pid in helpers:
            os.kill(pid, signal.SIGSTOP)
        while launcher.lost is None:
            launcher.wait(0.05)
        assert launcher.lost.message == "the fork server was stopped"
        launcher.kill()
        assert not tagged_processes(mark)
        launcher.prepare(lambda: False)


def patient_for_a_moment(kind: str, tmp_path: Path, mark: str) -> Launcher:
    """A launcher of one rank that does nothing."""
    environment = {**os.environ, "FAKE_ACTS": json.dumps(["hang"])}
    if kind == "cold":
        return ColdLauncher(environment, mark, FAKE_HOST, patience_s=0.3)
    return ForkServerLauncher(environment, mark, tmp_path / "host.log", 30, FAKE_HOST, patience_s=0.3)
