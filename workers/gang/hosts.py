"""Hosts of the worker's allocation with a node agent on each: node agents are started, and replaced where lost, and the
gang is chosen among the hosts."""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from shardtune.api_schemas.machines.hardware import Inventory
from shardtune.workers.clock import now_s
from shardtune.workers.gang import members, merge
from shardtune.workers.gang.link import GangEvents, NodeLink, ask_all
from shardtune.workers.gang.messages import Begin, NodeAddress, NodeReady, PortRange, PrepareOrder
from shardtune.workers.gang.pipe import Engine
from shardtune.workers.gang.rendezvous import find_addresses, require_shared

_RESTART_FRACTION = 0.5
"""Fraction of a node agent's lease that passes, once the node agent is lost, before another one is started on its
host."""
_PREPARE_S = 1200.0
"""Seconds allowed for the preparation of a gang of hosts, in which a fork server may have to start again, and other
programs may still use GPUs."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class GangPlan:
    """Requirements and settings of a gang (hosts that train together)."""

    nodes: int
    """Number of hosts that train together (the gang)."""
    begin: Begin
    """First message to each node agent, with its settings."""
    interface: str | None = None
    """Network interface that connects the hosts; None means any interface on which they reach each other."""
    ports: PortRange | None = None
    """First and last port that the rendezvous store may use; None means any port."""
    shared_dir: Path | None = None
    """Folder that all hosts must share; None if no shared folder is needed."""
    inspect_again_s: float = 60.0
    """Seconds between two inspections of each host's hardware and versions. Inspections take place between runs."""


@dataclass(frozen=True)
class Gang:
    """Hosts that train together, in the order of their ranks."""

    links: tuple[NodeLink, ...]
    addresses: tuple[NodeAddress, ...]

    @property
    def ready(self) -> list[NodeReady]:
        """Messages (`NodeReady`) with which the gang's node agents said that they are ready; each contains its host's
        inventory."""
        return [link.ready for link in self.links if link.ready is not None]

    @property
    def is_equal(self) -> bool:
        """Whether the hosts' hardware and software versions are similar enough for the hosts to train together."""
        return not any(members.differences(self.ready[0], host) for host in self.ready[1:])

    def address_of(self, link: NodeLink) -> NodeAddress:
        """Address of one of the gang's hosts at which ranks of the other hosts can reach it."""
        return self.addresses[self.links.index(link)]


class GangHosts:
    """Links to all hosts of one worker."""

    def __init__(
        self, engine: Engine, plan: GangPlan, events: GangEvents, ranks_end_in_s: Callable[[], float | None]
    ) -> None:
        self._engine, self._plan, self._events, self._ranks_end_in_s = engine, plan, events, ranks_end_in_s
        self._links: dict[str, NodeLink] = {}
        self._restart_s: dict[str, float] = {}
        self._failures: dict[str, str] = {}
        self._closing: list[threading.Thread] = []
        self._inspected_s = now_s()
        self.gang: Gang | None = None
        """Gang that was chosen last. One of its hosts may have been lost since then."""

    def start_missing(self) -> None:
        """Start a node agent (the process that starts ranks) on every host that has none.

        Raises:
            ValueError: there are fewer hosts than the gang needs, or a host rejects its settings.
        """
        for link in list(self._links.values()):
            # Only when its lease is over: a second node agent must not start beside ranks that may still live.
            if link.loss_reason is not None and now_s() >= link.certain_s:
                self._drop(link)
        for host in self._engine.hosts():
            if host not in self._links and now_s() >= self._restart_s.get(host, 0.0):
                log.info("host %s: starting a node agent", host)
                pipe = self._engine.start(host)
                self._links[host] = NodeLink(pipe, self._plan.begin, self._events, self._ranks_end_in_s)

    def _drop(self, link: NodeLink) -> None:
        reason = link.loss_reason or ""
        log.warning("host %s: %s", link.host, reason)
        self._failures[link.host] = reason
        self._restart_s[link.host] = now_s() + _RESTART_FRACTION * self._plan.begin.lease_s
        del self._links[link.host]
        # In a thread: closing waits for the process, and the other hosts' gang must not wait with it.
        self._closing.append(threading.Thread(target=link.close, name=f"close-{link.host}"))
        self._closing[-1].start()
        # Another start would fail in the same way, so the worker ends.
        if link.failed is not None and link.failed.is_input:
            raise ValueError(f"host {link.host}: {reason}")

    @property
    def is_settled(self) -> bool:
        """Whether no host is starting any more: each is either ready or lost."""
        return all(link.ready or link.loss_reason for link in self._links.values())

    def choose(self) -> Gang | None:
        """Choose the gang among the ready hosts, or keep the present gang if all its hosts are ready. None if too few
        hosts are ready.

        Raises:
            ValueError: enough hosts are ready, but they differ in hardware or versions, or do not share the folder that
                they should.
            NoRendezvous: the hosts do not reach each other.
        """
        if self.gang is not None and all(link.loss_reason is None for link in self.gang.links):
            return self.gang
        ready_hosts = [
            (link, link.ready)
            for host in self._engine.hosts()
            if (link := self._links.get(host)) and link.ready and link.loss_reason is None
        ]
        if len(ready_hosts) < self._plan.nodes:
            return None
        equal_hosts = members.largest_equal(ready_hosts)
        if len(equal_hosts) < self._plan.nodes:
            raise ValueError(
                members.explain_rejection(self._plan.nodes, [(link.host, ready) for link, ready in ready_hosts])
            )
        links = [link for link, _ in equal_hosts[: self._plan.nodes]]
        addresses = find_addresses(links, self._plan.interface, self._plan.ports)
        if self._plan.shared_dir is not None:
            require_shared(self._plan.shared_dir, links)
        self.gang = Gang(tuple(links), tuple(addresses))
        members_text = ", ".join(
            f"{link.host} ({address.address} on {address.interface})"
            for link, address in zip(links, addresses, strict=True)
        )
        log.info("the gang: %s", members_text)
        return self.gang

    def prepare(self, gang: Gang) -> bool:
        """Prepare every host of the gang (the hosts that train together) to launch.

        A host that cannot be prepared is given up, and hosts that are no longer equal are not used as a gang any more.
        """
        inspects = now_s() - self._inspected_s >= self._plan.inspect_again_s
        answers = ask_all(
            gang.links, lambda _, order: PrepareOrder(order=order, needs_fingerprint=inspects), _PREPARE_S
        )
        for link, answer in zip(gang.links, answers, strict=True):
            if answer.error is not None:
                link.give_up(answer.error)
            elif answer.fingerprint is not None:
                link.update_fingerprint(answer.fingerprint)
        if inspects:
            self._inspected_s = now_s()
            self.gang = gang if gang.is_equal else None
        return self.gang is not None and all(answer.error is None for answer in answers)

    @property
    def inventory(self) -> Inventory:
        """Inventory (hardware and software) of all hosts that train together, which the worker reports to the
        service."""
        assert self.gang is not None, "prepare first"
        hosts = {link.host for link in self.gang.links}
        spares = [host for host, link in self._links.items() if host not in hosts and link.ready]
        return merge.inventory(self.gang.ready, self.gang.addresses, spares)

    @property
    def problems(self) -> str:
        """Problems of the hosts as one text."""
        lost_now = {host: reason for host, link in self._links.items() if (reason := link.loss_reason)}
        starting = [host for host, link in self._links.items() if link.ready is None and link.loss_reason is None]
        problems = [f"host {host}: {reason}" for host, reason in sorted({**self._failures, **lost_now}.items())]
        return "; ".join([*problems, *(f"host {host}: not ready yet" for host in starting)]) or "no host is missing"

    def close(self) -> None:
        """End the node agents of all hosts."""
        self._closing += [threading.Thread(target=link.close) for link in self._links.values()]
        for thread in self._closing:
            if thread.ident is None:
                thread.start()
        for thread in self._closing:
            thread.join()
        self._links, self._closing, self.gang = {}, [], None
