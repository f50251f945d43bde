"""Ranks of one trial under two launchers, as on two hosts: each with a trial directory of its own, met at a store."""

import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shardtune.api_schemas.trials.leases import ResumeTask, TrialTask
from shardtune.api_schemas.trials.rank_reports import RankReport
from shardtune.api_schemas.trials.resume_check import ResumePlan
from shardtune.workers.launch import Launch, rendezvous
from shardtune.workers.trial_dir import TrialDir
from tests.rank.helpers.fork_server_process import HostProcess, launch_order
from tests.support.ranks.tiny_tasks import tiny_task

pytestmark = pytest.mark.ranks

HSDP = {"kind": "fsdp2", "dp_replicate": 2, "dp_shard": 2}
LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo"}
Folders = list[Path]


@pytest.fixture(scope="module")
def hosts(host: HostProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[HostProcess]]:
    other = HostProcess.start(tmp_path_factory.mktemp("other"))
    yield [host, other]
    other.close()


@pytest.fixture
def launch(hosts: list[HostProcess]) -> Callable[..., list[RankReport]]:
    """Run a launch over both hosts, half of its ranks on each; the reports by rank."""

    def over_both(folders: Folders, full_launch: Launch) -> list[RankReport]:
        hosts[0].order({"store": str(folders[0]), "ports": [0, 1], "address": "127.0.0.1"})
        where = rendezvous("127.0.0.1", hosts[0].event()["port"]) | LOOPBACK
        half = full_launch.ranks // 2
        shares = [full_launch.part(first, half, where) for first in (0, half)]
        for host, folder, share in zip(hosts, folders, shares, strict=True):
            host.order(launch_order(folder, share))
        codes = [event["code"] for host in hosts for event in [host.event() for _ in range(1 + half)][1:]]
        hosts[0].order({"kill": str(folders[0])})
        assert hosts[0].event()["event"] == "closed", "the store outlives its host's ranks, and no more"
        assert codes == [0] * full_launch.ranks
        paths = [folders[rank // half] / f"rank_{rank}.json" for rank in range(full_launch.ranks)]
        return [RankReport.model_validate_json(path.read_bytes()) for path in paths]

    return over_both


def folders_for(hosts: list[HostProcess], task: TrialTask | ResumeTask) -> Folders:
    return [host.prepare(task) for host in hosts]


def losses(reports: list[RankReport]) -> list[float]:
    return [step.loss for step in reports[0].trajectory]


def test_ranks_of_two_hosts_train_as_those_of_one(
    hosts: list[HostProcess], launch: Callable[..., list[RankReport]]
) -> None:
    task = tiny_task(HSDP, ranks=4, parity_steps=4)
    apart = launch(folders_for(hosts, task), Launch.of(4))
    assert [report.rank for report in apart] == [0, 1, 2, 3]
    assert losses(apart) == pytest.approx(losses(hosts[0].run(task)), rel=1e-6)


def test_the_order_says_who_loads_and_the_checkpoint_lies_where_all_see_it(
    hosts: list[HostProcess], launch: Callable[..., list[RankReport]], tmp_path: Path
) -> None:
    plan = ResumePlan(fewest_steps=2, most_steps=2, steps_after=2)
    folders = folders_for(hosts, ResumeTask(trial=tiny_task({"kind": "fsdp2", "dp_shard": 2}), plan=plan))
    first = Launch.of(2, checkpoint=str(tmp_path / "shared" / "run-1"))
    saved = launch(folders, first)
    for folder in folders:
        TrialDir(folder).begin_resume_phase()
    loaded = launch(folders, first.model_copy(update={"resumes": True}))
    assert [report.checkpoint.step for report in (*saved, *loaded) if report.checkpoint] == [2] * 4
    assert losses(loaded) == losses(saved)


def test_a_store_needs_a_free_port_of_its_range(hosts: list[HostProcess], tmp_path: Path) -> None:
    hosts[0].order({"store": str(tmp_path), "ports": [0, 1], "address": "127.0.0.1"})
    taken = hosts[0].event()["port"]
    hosts[1].order({"store": str(tmp_path), "ports": [taken, taken + 1], "address": "127.0.0.1"})
    rejected = hosts[1].event()
    assert rejected["event"] == "rejected" and f"meet_ports ({taken}-{taken})" in rejected["reason"]
    hosts[0].order({"kill": str(tmp_path)})
    assert hosts[0].event()["event"] == "closed"


def test_a_store_listens_at_one_address_of_its_host(hosts: list[HostProcess], tmp_path: Path) -> None:
    """torch's own listener takes connections at every address, and asks nobody for a password."""
    hosts[0].order({"store": str(tmp_path), "ports": [0, 1], "address": "127.0.0.2"})
    port = hosts[0].event()["port"]
    socket.create_connection(("127.0.0.2", port), timeout=5).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=5)
    hosts[0].order({"kill": str(tmp_path)})
    assert hosts[0].event()["event"] == "closed"
