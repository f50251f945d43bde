"""The agent's hold on its ranks, against a fake host that speaks the real protocol."""

import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import psutil
import pytest

from shardtune.api_schemas.trials.progress import Progress
from shardtune.service.cli.parent_death import dies_with_parent
from shardtune.workers.agent.supervise import RunLimits, _End, _Watch, _with_lost_node, supervise
from shardtune.workers.clock import now_s
from shardtune.workers.launch import Launch
from shardtune.workers.launchers.base import LaunchFailed, LostProcess, RankExit
from shardtune.workers.launchers.fork_server import ForkUnsafe
from shardtune.workers.launchers.parent_death import PID_NAMESPACE
from shardtune.workers.launchers.processes import LAUNCH_TAG, kill_tagged, start_child, tagged_processes
from tests.support.workers.worker_fakes import FAKE_HOST

LONG = RunLimits(deadline_s=60, no_progress_s=60)


def never():
    return None


def run(launcher, directory, limits=LONG, interrupted=never):
    launcher.prepare(lambda: False)
    return supervise(launcher, directory, Launch.of(2), limits, interrupted)


@pytest.mark.parametrize("start", ["warm", "cold"])
def test_ranks_that_end_well_leave_exit_codes_and_no_process(start, request, directory, mark):
    launcher = request.getfixturevalue(start)("complete", "complete")
    ended = run(launcher, directory)
    assert sorted((exit.rank, exit.code) for exit in ended.exits) == [(0, 0), (1, 0)]
    assert ended.cause is None
    launcher.close()
    assert tagged_processes(mark) == set()


@pytest.mark.parametrize("start", ["warm", "cold"])
def test_deadline_ends_ranks_that_do_make_progress(start, request, directory):
    ended = run(request.getfixturevalue(start)("busy", "busy"), directory, RunLimits(deadline_s=1, no_progress_s=60))
    assert ended.cause == "deadline"
    assert ended.exits == ()


def test_no_progress_ends_ranks_that_stand_still(warm, directory):
    ended = run(warm("hang", "hang"), directory, RunLimits(deadline_s=60, no_progress_s=0.5))
    assert ended.cause == "no_progress"


@pytest.mark.parametrize(
    ("step_s", "limits"), [(45.0, (1360.0, 135.0)), (0.1, (300.0, 60.0)), (9000.0, (3000.0, 600.0))]
)
def test_limits_follow_the_steps_that_are_seen(directory, step_s, limits):
    watch = _Watch(SimpleNamespace(exits=(), lost=None), directory, 2, RunLimits(300, 60), started_s=now_s() - 10)
    (directory.path / "progress.json").write_text(
        Progress(phase="warming_up", step=4, step_s=step_s, steps_left=10).model_dump_json()
    )
    assert watch.end(None) is None
    assert (watch._deadline_s, watch._no_progress_s) == pytest.approx(limits, rel=0.01)


def test_one_moving_rank_is_progress_enough(warm, directory):
    ended = run(warm("busy", "hang"), directory, RunLimits(deadline_s=1.5, no_progress_s=0.5))
    assert ended.cause == "deadline"


def test_interruption_kills_and_names_its_reason(warm, directory):
    ended = run(warm("busy", "busy"), directory, interrupted=lambda: "cancelled")
    assert (ended.cause, ended.detail) == ("interrupted", "cancelled")


def test_peers_of_a_failed_rank_are_not_waited_for(warm, directory):
    ended = run(warm("oom", "hang"), directory, RunLimits(deadline_s=60, no_progress_s=60, peer_grace_s=0.3))
    assert [(exit.rank, exit.code) for exit in ended.exits] == [(0, 1)]


def test_a_dead_host_ends_the_attempt_and_is_replaced(warm, directory, mark):
    launcher = warm("kill_host", "hang")
    ended = run(launcher, directory)
    assert ended.cause == "host_lost"
    assert tagged_processes(mark) == set()
    launcher.prepare(lambda: False)
    assert tagged_processes(mark), "a new host"


def test_processes_left_by_a_rank_are_ended_but_the_fork_server_stays(warm, directory, mark):
    launcher = warm("orphan", "complete")
    launcher.prepare(lambda: False)
    helpers = tagged_processes(mark)
    ended = run(launcher, directory)
    assert [exit.code for exit in ended.exits] == [0, 0]
    assert tagged_processes(mark) == helpers
    assert len(supervise(launcher, directory, Launch.of(2), LONG, never).exits) == 2


def test_a_host_that_does_not_obey_is_ended_with_its_ranks(warm, directory, mark):
    ended = run(warm("hang", "deaf", dying_s=0.3), directory, RunLimits(deadline_s=0.5, no_progress_s=60))
    assert ended.cause == "deadline"
    assert tagged_processes(mark) == set()


def test_a_host_that_cannot_start_is_explained_by_its_last_words(warm):
    with pytest.raises(LaunchFailed, match="cannot import torch"):
        warm("no_start").prepare(lambda: False)


def test_a_rejected_launch_says_why_and_costs_the_host_nothing(warm, directory, mark):
    with pytest.raises(LaunchFailed, match="not today"):
        run(warm("reject"), directory)
    assert tagged_processes(mark), "the host"


def test_a_host_that_finds_forking_unsafe_says_so(warm, mark):
    with pytest.raises(ForkUnsafe):
        warm("fork_unsafe").prepare(lambda: False)
    assert tagged_processes(mark) == set()


@pytest.mark.parametrize(
    ("cause", "codes", "becomes"),
    [
        (None, (1, 1), "node_lost"),
        ("no_progress", (), "node_lost"),
        ("host_lost", (), "node_lost"),
        (None, (0, 0), None),
        ("interrupted", (), "interrupted"),
    ],
)
def test_a_lost_node_explains_an_end_but_neither_a_result_nor_a_stop(cause, codes, becomes):
    exits = [RankExit(rank, code) for rank, code in enumerate(codes)]
    assert (
        _with_lost_node(_End(cause), exits, 2, LostProcess("node n3 was silent for 6 s", is_node=True)).cause == becomes
    )
    assert _with_lost_node(_End(cause), exits, 2, LostProcess("the fork server ended")).cause == cause


_AGENT = """
import os, sys
from pathlib import Path
from shardtune.workers.launch import Launch
from shardtune.workers.launchers.fork_server import ForkServerLauncher
from shardtune.workers.launchers.cold import ColdLauncher
kind, mark, directory, *command = sys.argv[1:]
if kind == "warm":
    launcher = ForkServerLauncher(os.environ, mark, Path(directory) / "host.log", 30, command)
else:
    launcher = ColdLauncher(os.environ, mark, command)
launcher.prepare(lambda: False)
launcher.launch(Path(directory), Launch.of(2))
while True:
    launcher.wait(1)
"""


@pytest.fixture
def agent_with(mark, directory):
    """Starts a process that launches and then only waits; it does not outlive the test."""
    started = []

    def start(acts, kind, **environment):
        command = [sys.executable, "-c", _AGENT, kind, mark, str(directory.path), *FAKE_HOST]
        started.append(
            subprocess.Popen(dies_with_parent(command), env={**os.environ, "FAKE_ACTS": acts, **environment})
        )
        return started[-1]

    yield start
    for agent in started:
        agent.kill()
        agent.wait()


@pytest.mark.parametrize(("kind", "processes"), [("warm", 3), ("cold", 2)])
def test_kill_9_of_the_agent_leaves_nothing(kind, processes, agent_with, directory, mark):
    agent = agent_with('["busy", "hang"]', kind)
    assert _until(lambda: len(tagged_processes(mark)) >= processes and directory.progress() is not None, seconds=60.0)
    agent.send_signal(signal.SIGKILL)
    agent.wait()
    assert _until(lambda: not tagged_processes(mark)), "a rank outlived its agent by five seconds"


def test_what_sheds_session_environment_and_parent_dies_with_the_host_in_a_pid_namespace(warm, agent_with, directory):
    if warm("complete").prepare(lambda: False).isolation != PID_NAMESPACE:
        pytest.skip("PID namespaces are not permitted here")
    seconds = f"600.{os.getpid()}"
    agent = agent_with('["daemon", "hang"]', "warm", FAKE_DAEMON_S=seconds)
    assert _until(lambda: _daemons(seconds) and directory.report(0) is not None, seconds=60.0)
    (wrapper,) = psutil.Process(agent.pid).children()
    (host,) = wrapper.children()
    host.kill()
    assert _until(lambda: not _daemons(seconds))


@pytest.mark.parametrize("kind", ["warm", "cold"])
def test_kill_9_of_the_agent_leaves_nothing_that_sheds_session_and_environment(kind, agent_with, directory, mark):
    seconds = f"600.{os.getpid()}{len(kind)}7"
    agent = agent_with('["daemon", "hang"]', kind, FAKE_DAEMON_S=seconds)
    assert _until(lambda: _daemons(seconds) and directory.report(0) is not None, seconds=60.0)
    agent.send_signal(signal.SIGKILL)
    agent.wait()
    assert _until(lambda: not _daemons(seconds) and not tagged_processes(mark)), (
        "a daemon outlived its agent by five seconds"
    )


def test_a_keeper_ends_daemons_of_its_program_and_no_other_process():
    other = subprocess.Popen(["sleep", "60"], start_new_session=True)
    script = "import os, sys; os.spawnve(os.P_NOWAIT, '/bin/setsid', ['setsid', 'sleep', sys.argv[1]], {}); sys.exit(7)"
    seconds = f"600.{os.getpid()}"
    kept = start_child([sys.executable, "-c", script, seconds], os.environ, kept=True)
    try:
        assert kept.wait(30) == 7
        assert not _daemons(seconds)
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_a_keeper_ends_as_its_program_did():
    script = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
    assert start_child([sys.executable, "-c", script], os.environ, kept=True).wait(30) == -signal.SIGSEGV


def _daemons(seconds):
    return [p for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == ["sleep", seconds]]


def test_only_processes_of_the_pool_are_found(mark):
    mine = subprocess.Popen(["sleep", "60"], env={**os.environ, LAUNCH_TAG: mark})
    other = subprocess.Popen(["sleep", "60"], env={**os.environ, LAUNCH_TAG: mark + "x"})
    try:
        assert _until(lambda: tagged_processes(mark) == {mine.pid}, seconds=60.0)
        assert kill_tagged(mark) == set()
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()
        mine.wait()


def _until(true, seconds=5.0):
    ends = time.monotonic() + seconds
    while not true():
        if time.monotonic() > ends:
            return False
        time.sleep(0.02)
    return True
