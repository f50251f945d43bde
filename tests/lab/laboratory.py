"""Hosts, links and an engine as one thing that is up, is hurt, and is taken down without a trace."""

import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from tests.lab import links, processes
from tests.lab.claim import Claim, NoLaboratory, Plan, abandoned, claim, find, this_process
from tests.lab.hosts import Host
from tests.lab.init import QUIET
from tests.lab.ray_cluster import RayCluster
from tests.lab.slurm import Slurm

HEAD = "head"
"""Host on which slurmctld or Ray's head runs; it trains nothing, and its link is not shaped."""


class Laboratory:
    """A laboratory that was begun, whether it is all up or not."""

    def __init__(self, claimed: Claim):
        self.claim = claimed
        plan, number = claimed.plan, claimed.number
        self.nodes = tuple(
            Host(claimed, f"n{item}", f"10.87.{number}.{10 + item}", plan.inter_mbit) for item in range(plan.hosts)
        )
        """The hosts that train."""
        self.head = None if plan.engine == "none" else Host(claimed, HEAD, f"10.87.{number}.2", 0)
        self.engine = self._engine()
        self.gateway = links.gateway(number)
        """This machine's address among the hosts."""

    def _engine(self) -> Slurm | RayCluster | None:
        if self.head is None:
            return None
        kinds: dict[str, type[Slurm | RayCluster]] = {"slurm": Slurm, "ray": RayCluster}
        return kinds[self.claim.plan.engine](self.head, self.nodes, self.claim.plan.ranks)

    @classmethod
    def up(cls, plan: Plan, number: int | None = None) -> Self:
        """Make one; with an owner in the plan, those of dead owners are taken down first.

        Raises:
            NoLaboratory: the number is taken.
        """
        for abandoned_claim in abandoned():
            with suppress(NoLaboratory, FileNotFoundError):  # another process was quicker
                cls(abandoned_claim).down()
        instance = cls(claim(plan, number))
        try:
            instance._make()
        except BaseException:
            # Its owner lives on and would never be found to have abandoned it.
            instance.down()
            raise
        return instance

    @classmethod
    def at(cls, number: int) -> Self:
        """Laboratory with this number.

        Raises:
            NoLaboratory: there is none.
        """
        return cls(find(number))

    @property
    def hosts(self) -> tuple[Host, ...]:
        """All hosts, the head first."""
        return (*([self.head] if self.head else []), *self.nodes)

    @property
    def environment(self) -> Mapping[str, str]:
        """Environment variables that programs on the hosts need for the engine."""
        return self.engine.environment if self.engine else {}

    def _make(self) -> None:
        names = "".join(f"{host.address} {host.name}\n" for host in self.hosts)
        (self.claim.folder / "hosts").write_text(f"127.0.0.1 localhost\n{names}")
        if self.claim.plan.is_quiet:
            (self.claim.folder / QUIET).write_text(Path("/proc/stat").read_text())
        links.make_bridge(self.claim.number)
        for host in self.hosts:
            host.boot()
            host.plug()
        if self.engine:
            self.engine.start()

    def host(self, name: str) -> Host:
        """The host of that name.

        Raises:
            NoLaboratory: there is none.
        """
        for host in self.hosts:
            if host.name == name:
                return host
        raise NoLaboratory(f"host {name!r} is not in the laboratory: {', '.join(host.name for host in self.hosts)}")

    def start(self, name: str, words: Sequence[str], **options: Any) -> "subprocess.Popen[bytes]":
        """Run something on a host, which dies with this process's child; `options` are Popen's."""
        return self.host(name).start(words, self.environment, **options)

    def run(self, name: str, words: Sequence[str], timeout_s: float = 60.0) -> str:
        """Run something on a host to its end; what it printed."""
        running = self.start(name, words, stdout=subprocess.PIPE)
        printed, _ = running.communicate(timeout=timeout_s)
        if running.returncode:
            raise subprocess.CalledProcessError(running.returncode, list(words), printed)
        return printed.decode()

    def cut(self, name: str) -> None:
        """Cut a host's link: nothing arrives, nobody is told."""
        links.cut(self.claim.number, self.host(name).name)

    def shape(self, mbit: int, delay_ms: float = 0.0, name: str | None = None) -> None:
        """Let every node's link, or that of one node, carry this much from now on; 0: as much as it can. Each packet is late
        by `delay_ms`."""
        for node in self.nodes if name is None else (self.host(name),):
            links.shape(self.claim.number, node.name, node.pid, mbit, delay_ms)

    def restore(self, name: str) -> None:
        """Undo a cut, a stop or a power cut."""
        host = self.host(name)
        if host.is_up:
            links.mend(self.claim.number, name)
            host.resume()
            return
        links.unplug(self.claim.number, [name])
        host.boot()
        host.plug()
        if self.engine:
            self.engine.start_on(host)

    def down(self) -> None:
        """Take away all that is there, also of one whose maker was killed."""
        processes.kill_all(lambda: processes.marked(self.claim.folder))
        links.remove(self.claim.number, [host.name for host in self.hosts])
        self.claim.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.down()


def described(laboratory: Laboratory, up_s: float) -> dict[str, Any]:
    """Facts that `up --json` prints."""
    plan = laboratory.claim.plan
    return {
        "hosts": [
            {"name": node.name, "address": node.address, "interface": links.INTERFACE, "ranks": plan.ranks}
            for node in laboratory.nodes
        ],
        "inter_mbit": plan.inter_mbit,
        "engine": plan.engine,
        "up_s": round(up_s, 1),
    }


def for_this_process(
    hosts: int, ranks: int, inter_mbit: int = 0, engine: str = "none", *, is_quiet: bool = False
) -> Laboratory:
    """Laboratory of this process; the next laboratory takes it down if this process dies before."""
    return Laboratory.up(Plan(hosts, ranks, inter_mbit, engine, this_process(), is_quiet))  # type: ignore[arg-type]
