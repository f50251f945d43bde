"""A gang over two node agents on this machine, each with a fake fork server: what the launcher promises, and what becomes of the lost."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import psutil
import pytest

from shardtune.api_schemas.trials.leases import TrialTask
from shardtune.service.cli.parent_death import dies_with_parent
from shardtune.workers.agent.attempt import Workplace, run_attempt
from shardtune.workers.agent.supervise import RunLimits, supervise
from shardtune.workers.gang.hosts import GangPlan
from shardtune.workers.gang.launcher import GangLauncher
from shardtune.workers.gang.messages import Begin
from shardtune.workers.launch import Launch
from shardtune.workers.launchers.processes import kill_tagged, tagged_processes
from shardtune.workers.trial_dir import TrialDir
from tests.support.workers.worker_fakes import make_task
from tests.unit.workers.gang.local_node_agents import ROOT, LocalHosts

HOSTS = ("n0", "n1")
LEASE_S = 2.0
LONG = RunLimits(deadline_s=60, no_progress_s=60)
GangAndHosts = tuple[GangLauncher, LocalHosts]


@pytest.fixture
def task() -> TrialTask:
    cluster = {"device": "cpu", "nodes": 2, "gpus_per_node": 1, "memory_gib": 4, "host_memory_gib": 8}
    return make_task(cluster=cluster)


@pytest.fixture
def make(tmp_path: Path, mark: str) -> Iterator[Callable[..., GangAndHosts]]:
    """Makes a gang whose ranks act as told; on the way out nothing of it lives on any host."""
    gangs: list[GangLauncher] = []
    marks = {f"{mark}-{item}-{host}" for item in (0, 1) for host in (*HOSTS, "n2")}

    def make_gang(
        *acts: str, hosts: tuple[str, ...] = HOSTS, says: Mapping[str, object] = {}, **plan: object
    ) -> GangAndHosts:
        engine = LocalHosts(hosts, tmp_path / "hosts", f"{mark}-{len(gangs)}", acts, says)
        begin = Begin(settings={"ranks": 1, "min_free_gib": 0}, lease_s=LEASE_S)
        gangs.append(GangLauncher(engine, GangPlan(2, begin, **plan), wait_s=10))
        return gangs[-1], engine

    yield make_gang
    for launcher in gangs:
        launcher.close()
    live_pids = {name: pids for name in marks if (pids := tagged_processes(name))}
    for name in marks:
        kill_tagged(name)
    assert live_pids == {}


def run(launcher: GangLauncher, directory: TrialDir, interrupted: Callable[[], str | None] = lambda: None):
    launcher.prepare(lambda: False)
    return supervise(launcher, directory, Launch.of(2), LONG, interrupted)


def alive(mark: str) -> set[int]:
    """Ranks, on any host: processes beyond fork server and its wrapper."""
    return {pid for host in HOSTS for pid in tagged_processes(f"{mark}-0-{host}")}


def node_pids(engine: LocalHosts) -> list[int]:
    return [pipe.process.pid for pipe in engine.pipes]


def test_a_gang_offers_what_all_have_and_keeps_its_fork_servers_between_launches_on_all_hosts_and_on_one(
    make, directory, tmp_path, fingerprint
) -> None:
    """One gang for all of these: its two node agents start for a second of a core."""
    launcher, engine = make("complete", "complete", says={"n1": {"host_memory_gib": 7.9}})
    for _ in range(2):
        ended = run(launcher, directory)
        assert sorted((end.rank, end.code) for end in ended.exits) == [(0, 0), (1, 0)] and ended.cause is None
    offered = launcher.inventory
    assert (offered.cluster.nodes, offered.cluster.world_size, offered.fingerprint.nodes) == (2, 2, 2)
    assert offered.fingerprint.host_memory_gib == 7.9
    first, second = directory.report(0), directory.report(1)
    assert first is not None and second is not None
    assert first.trajectory and not second.trajectory
    assert second.window_step_times_s[0] == pytest.approx(0.12)

    task_of_one_host = make_task(cluster={"device": "cpu", "gpus_per_node": 1, "memory_gib": 4, "host_memory_gib": 8})
    folder = TrialDir.create(tmp_path / "work", "run-2", task_of_one_host, fingerprint, min_free_gib=0)
    ended = supervise(launcher, folder, Launch.of(1), LONG, lambda: None)
    assert [end.rank for end in ended.exits] == [0] and ended.conditions.hosts == ("n0",)
    assert len(engine.pipes) == 2


def test_what_a_rank_said_last_comes_here(make, directory) -> None:
    launcher, _ = make("complete", "oom")
    ended = run(launcher, directory)
    assert {(end.rank, end.code) for end in ended.exits} == {(0, 0), (1, 1)}
    assert directory.log_tail(1) == "rank 1 acts oom\n"


def test_one_host_s_launch_that_is_rejected_ends_it_everywhere(make, directory, mark) -> None:
    launcher, _ = make("reject")
    with pytest.raises(Exception, match=r"host n[01]: the fork server rejected: not today"):
        run(launcher, directory)


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGSTOP])
def test_a_lost_node_ends_the_ranks_everywhere_before_it_is_told_and_is_replaced(make, directory, mark, sign) -> None:
    launcher, engine = make("busy", "hang")
    launcher.prepare(lambda: False)
    helpers = alive(mark)
    (_, second) = node_pids(engine)
    struck: list[float] = []

    def strike() -> None:
        if not struck and len(alive(mark) - helpers) == 2:
            os.kill(second, sign)
            struck.append(time.monotonic())

    ended = supervise(launcher, directory, Launch.of(2), LONG, strike)
    assert ended.cause == "node_lost" and "n1" in ended.detail
    assert not alive(mark) - helpers
    if sign == signal.SIGSTOP:
        os.kill(second, signal.SIGCONT)
    assert len(run(launcher, directory, lambda: "enough").exits) == 0
    assert len(engine.pipes) == 3


_AGENT = """
import sys
from pathlib import Path
from shardtune.workers.gang.hosts import GangPlan
from shardtune.workers.gang.launcher import GangLauncher
from shardtune.workers.gang.messages import Begin
from shardtune.workers.launch import Launch
from tests.unit.workers.gang.local_node_agents import ROOT, LocalHosts
folder, mark, lease_s, directory = sys.argv[1:]
engine = LocalHosts(("n0", "n1"), Path(folder), mark, ("busy", "hang"))
begin = Begin(settings={"ranks": 1, "min_free_gib": 0}, lease_s=float(lease_s))
launcher = GangLauncher(engine, GangPlan(2, begin), wait_s=30)
launcher.prepare(lambda: False)
launcher.launch(Path(directory), Launch.of(2))
while True:
    launcher.wait(1)
"""


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGSTOP])
def test_an_agent_that_is_killed_or_stopped_leaves_nothing(directory, tmp_path, mark, sign) -> None:
    words = [sys.executable, "-c", _AGENT, str(tmp_path / "hosts"), f"{mark}-0", str(LEASE_S), str(directory.path)]
    agent = subprocess.Popen(dies_with_parent(words), cwd=ROOT)
    nodes: list[psutil.Process] = []
    try:
        # The progress file says that ranks run on the first host; those of the second were started with them.
        assert until(lambda: directory.progress() is not None, 30)
        nodes = psutil.Process(agent.pid).children(recursive=True)
        agent.send_signal(sign)
        assert until(lambda: not alive(mark), 10 * LEASE_S)
        assert len(nodes) > 2 and until(lambda: not any(map(lives, nodes)), 10 * LEASE_S)
    finally:
        agent.kill()
        agent.wait()


def lives(process: psutil.Process) -> bool:
    """A zombie of a stopped parent does not count as alive."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def until(true: Callable[[], bool], limit_s: float) -> bool:
    ends_s = time.monotonic() + limit_s
    while not true():
        if time.monotonic() > ends_s:
            return False
        time.sleep(0.05)
    return True


def test_who_is_interrupted_does_not_look_at_lost_hosts(make, directory, mark) -> None:
    launcher, engine = make("busy", "hang")
    launcher.prepare(lambda: False)

    def stopped() -> str:
        for pid in node_pids(engine):
            psutil.Process(pid).kill()
        return "the worker was stopped by SIGTERM"

    ended = supervise(launcher, directory, Launch.of(2), LONG, stopped)
    assert ended.cause == "interrupted"


@pytest.mark.parametrize(("reason", "kind"), [(None, "node_lost"), ("the worker was stopped by SIGTERM", None)])
def test_a_host_lost_before_ranks_start_is_no_fault_of_the_run(make, tmp_path, task, fingerprint, reason, kind) -> None:
    launcher, engine = make("complete", "complete")
    launcher.prepare(lambda: False)
    psutil.Process(node_pids(engine)[1]).kill()
    place = Workplace(tmp_path / "work", launcher, fingerprint, 2, None, 0, nodes=2)
    create = lambda: TrialDir.create(place.work_dir, "run-1", task, fingerprint, 0)  # noqa: E731
    done = run_attempt(place, task, create, LONG, lambda: reason)
    assert (done and done.result.kind) == kind


def test_a_spare_host_takes_the_place_of_a_lost_one(make, directory) -> None:
    launcher, engine = make("complete", "complete", hosts=(*HOSTS, "n2"))
    launcher.prepare(lambda: False)
    assert [host["host"] for host in launcher.inventory.details["hosts"]] == ["n0", "n1"]
    engine.names.remove("n1")
    psutil.Process(node_pids(engine)[1]).kill()
    assert len(run(launcher, directory).exits) == 2
    assert [host["host"] for host in launcher.inventory.details["hosts"]] == ["n0", "n2"]


def test_hosts_that_differ_are_named_with_field_and_both_values(make) -> None:
    launcher, _ = make("complete", says={"n1": {"torch": "2.12.0"}, "n0": {"torch": "2.11.0"}})
    with pytest.raises(ValueError, match=r"n1 differs from n0 in torch \(2\.11\.0 and 2\.12\.0\)"):
        launcher.prepare(lambda: False)


def test_an_interface_that_a_host_lacks_is_named_with_those_it_has(make) -> None:
    launcher, _ = make("complete", interface="eth77")
    with pytest.raises(ValueError, match=r"interface \(eth77\) is not up on host n0, which has: .*lo"):
        launcher.prepare(lambda: False)


def test_a_folder_that_all_hosts_see_is_taken_and_one_that_cannot_be_is_rejected(make, tmp_path) -> None:
    launcher, _ = make("complete", shared_dir=tmp_path / "shared")
    launcher.prepare(lambda: False)
    (own,) = (tmp_path / "shared").iterdir()
    assert own.stat().st_mode & 0o777 == 0o700 and list(own.iterdir()) == []
    (tmp_path / "file").touch()
    launcher, _ = make("complete", shared_dir=tmp_path / "file" / "folder")
    with pytest.raises(ValueError, match=r"shared_dir \(.*\): .*file is no folder"):
        launcher.prepare(lambda: False)


def test_hosts_look_at_themselves_again_and_one_that_has_come_to_differ_is_replaced(make, tmp_path) -> None:
    launcher, _ = make("complete", hosts=(*HOSTS, "n2"), inspect_again_s=0)
    launcher.prepare(lambda: False)

    def says(host: str, kernel: str) -> None:
        (tmp_path / "hosts" / host / "tmp" / "says.json").write_text(json.dumps({"kernel": kernel}))

    for host in HOSTS:
        says(host, "7")
    launcher.prepare(lambda: False)
    assert launcher.inventory.fingerprint.kernel == "7"
    says("n0", "6")
    launcher.prepare(lambda: False)
    assert [host["host"] for host in launcher.inventory.details["hosts"]] == ["n0", "n2"]
    assert launcher.inventory.fingerprint.kernel == "6"
