"""The faults: what each does to the laboratory, the service or the worker, and how it is undone."""

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass

import psutil

from tests.lab.hosts import Host
from tests.lab.laboratory import HEAD, Laboratory
from tests.lab.service import LEASE_S, LabService
from tests.lab.worker import LabWorker

LAST = "n1"
"""The host that is hurt: not the agent's under Slurm, not where ranks meet."""


@dataclass(frozen=True)
class Scene:
    """Parts that a fault may touch."""

    laboratory: Laboratory
    service: LabService
    worker: LabWorker

    @property
    def last(self) -> Host:
        return self.laboratory.host(LAST)


@dataclass(frozen=True)
class HostFault:
    """`undo` follows after `lasts_s`; ranks may live on under one that `costs_nothing`."""

    hurt: Callable[[Scene], None]
    undo: Callable[[Scene], None] = lambda scene: None
    lasts_s: float = 0.0
    costs_nothing: bool = False


def ranks_on(host: Host) -> set[int]:
    """Ranks, and where they meet the store: what a fork server has forked."""
    return {child.pid for warm in _fork_servers(host) for child in _children(warm)}


def _fork_servers(host: Host) -> set[int]:
    results = host.find("rank.warm.host") - host.find("parent_death")
    return {pid for pid in results if _parent(pid) not in results}


def _parent(pid: int) -> int | None:
    try:
        return psutil.Process(pid).ppid()
    except psutil.NoSuchProcess:
        return None


def _children(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _signalled(number: signal.Signals, which: Callable[[Scene], set[int]]) -> Callable[[Scene], None]:
    def hurt(scene: Scene) -> None:
        pids = which(scene)
        assert pids, "nobody is there to be hurt"
        for pid in pids:
            os.kill(pid, number)

    return hurt


def _rank(scene: Scene) -> set[int]:
    return {max(ranks_on(scene.last))}


def _fork_server(scene: Scene) -> set[int]:
    return _fork_servers(scene.last)


def _node_agent(scene: Scene) -> set[int]:
    find = scene.last.find("shardtune.workers.node")
    return {pid for pid in find if "python" in psutil.Process(pid).name() and "parent_death" not in _words(pid)}


def _words(pid: int) -> str:
    return " ".join(psutil.Process(pid).cmdline())


def _agent(scene: Scene) -> set[int]:
    return scene.worker.agents_on(scene.worker.agent_host)


def _daemon(host: Callable[[Scene], Host], word: str) -> Callable[[Scene], set[int]]:
    return lambda scene: host(scene).find(word)


def _head(scene: Scene) -> Host:
    return scene.laboratory.host(HEAD)


def _restore_last(scene: Scene) -> None:
    scene.laboratory.restore(LAST)


def _power_cut_of_agent(scene: Scene) -> None:
    scene.worker.agent_host.cut_power()


def _restore_dead(scene: Scene) -> None:
    for host in scene.laboratory.hosts:
        if not host.is_up:
            scene.laboratory.restore(host.name)


def _away(scene: Scene) -> None:
    scene.service.stop()


_CUT = HostFault(lambda scene: scene.laboratory.cut(LAST), _restore_last, lasts_s=15)

COMMON: dict[str, HostFault] = {
    "rank_killed": HostFault(_signalled(signal.SIGKILL, _rank)),
    "rank_stopped": HostFault(_signalled(signal.SIGSTOP, _rank)),
    "fork_server_killed": HostFault(_signalled(signal.SIGKILL, _fork_server)),
    "fork_server_stopped": HostFault(_signalled(signal.SIGSTOP, _fork_server)),
    "node_agent_killed": HostFault(_signalled(signal.SIGKILL, _node_agent)),
    "node_agent_stopped": HostFault(_signalled(signal.SIGSTOP, _node_agent)),
    "agent_killed": HostFault(_signalled(signal.SIGKILL, _agent)),
    "agent_stopped": HostFault(_signalled(signal.SIGSTOP, _agent), _signalled(signal.SIGKILL, _agent), lasts_s=20),
    "link_cut": _CUT,
    "link_cut_3_s": HostFault(_CUT.hurt, _restore_last, lasts_s=3, costs_nothing=True),
    "power_cut": HostFault(lambda scene: scene.last.cut_power(), _restore_last, lasts_s=15),
    "power_cut_of_agent": HostFault(_power_cut_of_agent, _restore_dead, lasts_s=15),
    "service_away": HostFault(_away, lambda scene: scene.service.start(), lasts_s=LEASE_S + 5),
}
ENGINE: dict[str, dict[str, HostFault]] = {
    "slurm": {
        "slurmd_killed": HostFault(
            _signalled(signal.SIGKILL, _daemon(lambda s: s.last, "slurmd -D")), costs_nothing=True
        ),
        "slurmctld_killed": HostFault(_signalled(signal.SIGKILL, _daemon(_head, "slurmctld -D")), costs_nothing=True),
    },
    "ray": {
        "raylet_killed": HostFault(_signalled(signal.SIGKILL, _daemon(lambda s: s.last, "raylet/raylet"))),
        "gcs_killed": HostFault(_signalled(signal.SIGKILL, _daemon(_head, "gcs/gcs_server"))),
    },
}
