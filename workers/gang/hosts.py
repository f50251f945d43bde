"""The hosts of the allocation with a node agent on each: started, replaced where lost, and the gang chosen among them."""

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
from shardtune.workers.gang.rendezvous import meet, require_shared

_AGAIN = 0.5
"""Of a lease, before a node agent is started anew on a host that lost one."""
_PREPARE_S = 1200.0
"""For a fork server that has to be started again, and GPUs that others use."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class GangPlan:
    """What a gang has to be."""

    nodes: int
    begin: Begin
    interface: str | None = None
    ports: PortRange | None = None
    shared_dir: Path | None = None
    look_again_s: float = 60.0
    """How often, between runs, each host looks at itself again."""


@dataclass(frozen=True)
class Gang:
    """Hosts that train together, in the order of their ranks."""

    links: tuple[NodeLink, ...]
    addresses: tuple[NodeAddress, ...]

    @property
    def ready(self) -> list[NodeReady]:
        """What the hosts said of themselves."""
        return [link.ready for link in self.links if link.ready is not None]

    @property
    def is_equal(self) -> bool:
        """They may train together."""
        return not any(members.differences(self.ready[0], other) for other in self.ready[1:])

    def address_of(self, link: NodeLink) -> NodeAddress:
        """Of one of its hosts."""
        return self.addresses[self.links.index(link)]


class GangHosts:
    """All links of one worker."""

    def __init__(
        self, engine: Engine, plan: GangPlan, events: GangEvents, ranks_end_in_s: Callable[[], float | None]
    ) -> None:
        self._engine, self._plan, self._events, self._ranks_end_in_s = engine, plan, events, ranks_end_in_s
        self._links: dict[str, NodeLink] = {}
        self._again_s: dict[str, float] = {}
        self._failures: dict[str, str] = {}
        self._closing: list[threading.Thread] = []
        self._looked_s = now_s()
        self.gang: Gang | None = None
        """As it last was; one of its hosts may be lost meanwhile."""

    def renew(self) -> None:
        """Start a node agent on every host that has none.

        Raises:
            ValueError: fewer hosts than nodes, or a host was told what cannot be.
        """
        for link in list(self._links.values()):
            if link.why_lost is not None and now_s() >= link.certain_s:
                self._drop(link)
        for host in self._engine.hosts():
            if host not in self._links and now_s() >= self._again_s.get(host, 0.0):
                log.info("host %s: starting a node agent", host)
                pipe = self._engine.start(host)
                self._links[host] = NodeLink(pipe, self._plan.begin, self._events, self._ranks_end_in_s)

    def _drop(self, link: NodeLink) -> None:
        why = link.why_lost or ""
        log.warning("host %s: %s", link.host, why)
        self._failures[link.host] = why
        self._again_s[link.host] = now_s() + _AGAIN * self._plan.begin.lease_s
        del self._links[link.host]
        self._closing.append(threading.Thread(target=link.close, name=f"close-{link.host}"))
        self._closing[-1].start()
        if link.failed is not None and link.failed.is_input:
            raise ValueError(f"host {link.host}: {why}")

    @property
    def is_settled(self) -> bool:
        """Every host has said what it is, or that it is nothing."""
        return all(link.ready or link.why_lost for link in self._links.values())

    def choose(self) -> Gang | None:
        """The gang of the hosts that are ready; the present one while it is whole. None: too few are.

        Raises:
            ValueError: enough are ready, but they are not equal, or do not share the folder that they should.
            NoRendezvous: they do not reach each other.
        """
        if self.gang is not None and all(link.why_lost is None for link in self.gang.links):
            return self.gang
        found = [
            (link, link.ready)
            for host in self._engine.hosts()
            if (link := self._links.get(host)) and link.ready and link.why_lost is None
        ]
        if len(found) < self._plan.nodes:
            return None
        equal = members.largest_equal(found)
        if len(equal) < self._plan.nodes:
            raise ValueError(members.rejection(self._plan.nodes, [(link.host, ready) for link, ready in found]))
        links = [link for link, _ in equal[: self._plan.nodes]]
        addresses = meet(links, self._plan.interface, self._plan.ports)
        if self._plan.shared_dir is not None:
            require_shared(self._plan.shared_dir, links)
        self.gang = Gang(tuple(links), tuple(addresses))
        words = ", ".join(
            f"{link.host} ({own.address} on {own.interface})" for link, own in zip(links, addresses, strict=True)
        )
        log.info("the gang: %s", words)
        return self.gang

    def are_prepared(self, gang: Gang) -> bool:
        """Have every host of the gang ready to launch. One that cannot be is given up, and hosts that have come to differ are no
        gang any more.
        """
        looks = now_s() - self._looked_s >= self._plan.look_again_s
        answers = ask_all(gang.links, lambda _, order: PrepareOrder(order=order, looks=looks), _PREPARE_S)
        for link, answer in zip(gang.links, answers, strict=True):
            if answer.error is not None:
                link.give_up(answer.error)
            elif answer.fingerprint is not None:
                link.is_now(answer.fingerprint)
        if looks:
            self._looked_s = now_s()
            self.gang = gang if gang.is_equal else None
        return self.gang is not None and all(answer.error is None for answer in answers)

    @property
    def inventory(self) -> Inventory:
        """What the gang offers."""
        assert self.gang is not None, "prepare first"
        hosts = {link.host for link in self.gang.links}
        spares = [host for host, link in self._links.items() if host not in hosts and link.ready]
        return merge.inventory(self.gang.ready, self.gang.addresses, spares)

    @property
    def troubles(self) -> str:
        """What is wrong with hosts, in words."""
        now = {host: why for host, link in self._links.items() if (why := link.why_lost)}
        starting = [host for host, link in self._links.items() if link.ready is None and link.why_lost is None]
        words = [f"host {host}: {why}" for host, why in sorted({**self._failures, **now}.items())]
        return "; ".join([*words, *(f"host {host}: not ready yet" for host in starting)]) or "no host is missing"

    def close(self) -> None:
        """End all node agents."""
        self._closing += [threading.Thread(target=link.close) for link in self._links.values()]
        for thread in self._closing:
            if thread.ident is None:
                thread.start()
        for thread in self._closing:
            thread.join()
        self._links, self._closing, self.gang = {}, [], None
