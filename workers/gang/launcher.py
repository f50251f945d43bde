"""Ranks on many hosts as one launch, behind the `Launcher` protocol. What happens on a host is `workers.node`'s business."""

from collections.abc import Callable
from pathlib import Path

from pydantic import TypeAdapter

from shardtune.api_schemas.machines.conditions import Conditions
from shardtune.api_schemas.machines.hardware import Inventory
from shardtune.api_schemas.trials.leases import ModelSummaryTask, Task
from shardtune.workers.clock import now_s
from shardtune.workers.gang import local_copy
from shardtune.workers.gang.hosts import Gang, GangHosts, GangPlan
from shardtune.workers.gang.link import GangEvents, NodeLink, ask_all
from shardtune.workers.gang.messages import KillOrder, LaunchOrder, LaunchOver, OrderDone, StageOrder
from shardtune.workers.gang.pipe import Engine
from shardtune.workers.gang.rendezvous import NoRendezvous, variables
from shardtune.workers.launch import Launch, rendezvous
from shardtune.workers.launchers.base import LaunchFailed, Lost, Prepared, RankExit, RanksAlive

_TASK: TypeAdapter[Task] = TypeAdapter(Task)
_KILL_S = 120.0
"""For a node to end its ranks; beyond, its lease does."""


class GangLauncher:
    """One launch at a time over the hosts of a gang."""

    def __init__(self, engine: Engine, plan: GangPlan, wait_s: float) -> None:
        """`wait_s`: how long a gang that is not whole is waited for."""
        self._engine, self._plan, self._wait_s = engine, plan, wait_s
        self._events = GangEvents()
        self._hosts = GangHosts(engine, plan, self._events, lambda: self._left_s)
        self._left_s: float | None = None
        self._folder: Path | None = None
        self._launched: tuple[NodeLink, ...] = ()
        self._orders: set[int] = set()
        self._moved = 0
        self._exits: list[RankExit] = []
        self._lost: Lost | None = None
        self._seen = Conditions()

    @property
    def inventory(self) -> Inventory:
        """What the gang offers, once prepared."""
        return self._hosts.inventory

    @property
    def exits(self) -> tuple[RankExit, ...]:
        """Ends of ranks since the launch, in the order in which they were heard of."""
        return tuple(self._exits)

    @property
    def lost(self) -> Lost | None:
        """A host of the launch of which nothing more is to be expected, or the helper of one; known as long as the launch is."""
        self._lost = self._lost or self._look_for_lost()
        return self._lost

    def _look_for_lost(self) -> Lost | None:
        for link in self._launched:
            if (why := link.why_lost) is not None:
                return Lost(f"host {link.host}: {why}", is_node=True)
            if link.helper_lost is not None:
                return Lost(f"host {link.host}: {link.helper_lost.message}")
        return None

    def prepare(self, give_up: Callable[[], bool]) -> Prepared:
        """Have a whole gang ready: replace what was lost, wait for what comes back.

        Raises:
            ValueError: at the start: too few hosts, unequal ones, or settings that do not fit them.
        """
        is_first, until_s, trouble = self._hosts.gang is None, now_s() + self._wait_s, ""
        while not give_up():
            self._hosts.renew()
            try:
                gang = None if is_first and not self._hosts.is_settled else self._hosts.choose()
            except (ValueError, NoRendezvous) as error:
                if is_first:
                    raise ValueError(str(error)) from None
                gang, trouble = None, str(error)
            if gang is not None and self._hosts.are_prepared(gang):
                return _prepared(gang)
            if now_s() > until_s:
                raise LaunchFailed(
                    f"there is no gang of {self._plan.nodes} hosts after {self._wait_s:.0f} s: "
                    f"{trouble or self._hosts.troubles}"
                )
            self._events.sleep(0.2)
        raise LaunchFailed("asked to stop while the hosts were starting")

    def launch(self, directory: Path, launch: Launch) -> None:
        """Stage on every host, then start everywhere."""
        gang = self._hosts.gang
        assert gang is not None, "prepare first"
        task = None if launch.program == "hardware" else _TASK.validate_json((directory / "task.json").read_bytes())
        nodes = 1 if isinstance(task, ModelSummaryTask) else self._plan.nodes if task is None else task.cluster.nodes
        self._begin(directory, gang, nodes)
        staged = ask_all(
            self._launched,
            lambda link, order: StageOrder(
                order=order,
                name=directory.name,
                task=task,
                fingerprint=self.inventory.fingerprint,
                resumes=launch.resumes,
                meets=nodes > 1 and link is self._launched[0],
                ports=self._plan.ports,
            ),
        )
        self._require(staged)
        shares = _shares(gang, launch, nodes, staged[0].port)
        started = ask_all(self._launched, lambda link, order: self._start(order, shares[link]))
        self._require(started)

    def _begin(self, directory: Path, gang: Gang, nodes: int) -> None:
        self._folder, self._launched, self._moved = directory, gang.links[:nodes], 0
        self._lost, self._seen = None, Conditions()
        self._exits.clear()
        self._events.ended.clear()
        self._orders.clear()
        self._left_s = local_copy.ranks_end_in_s(directory)
        for link in self._launched:
            link.begin_launch()

    def _start(self, order: int, share: Launch) -> LaunchOrder:
        self._orders.add(order)
        return LaunchOrder(order=order, launch=share)

    def _require(self, answers: list[OrderDone]) -> None:
        failed = [(link.host, a.error) for link, a in zip(self._launched, answers, strict=True) if a.error is not None]
        if failed:
            self.kill()
            raise LaunchFailed("; ".join(f"host {host}: {error}" for host, error in failed))

    def wait(self, timeout_s: float) -> None:
        """Sleep until a node says something, and write down what it said."""
        self._events.sleep(timeout_s)
        self._take_in()
        for link in self._launched:
            if link.rejected is not None:
                raise LaunchFailed(f"host {link.host}: {link.rejected.reason}")

    def _take_in(self) -> None:
        if self._folder is None:
            return
        self._left_s = local_copy.ranks_end_in_s(self._folder)
        while self._events.ended:
            ended = self._events.ended.popleft()
            if ended.order in self._orders:
                local_copy.write_end(self._folder, ended)
                self._exits.append(RankExit(ended.rank, ended.code))
        moved, progress = self._launched[0].progress
        if moved != self._moved and progress is not None:
            self._moved = moved
            local_copy.write_progress(self._folder, progress)

    def kill(self) -> None:
        """End the ranks everywhere at once. Of a host that is lost, wait until its time is over: by then it has ended them."""
        if not self._launched:
            return
        links = self._launched
        orders = {link: link.order(lambda order: KillOrder(order=order)) for link in links if link.why_lost is None}
        ends_s = now_s() + _KILL_S
        overs = {link: over for link, order in orders.items() if (over := self._over(link, order, ends_s)) is not None}
        while any(link.why_lost is not None and now_s() < link.certain_s for link in links):
            self._events.sleep(0.1)
        self._take_in()
        self._lost = self._lost or self._look_for_lost()
        self._seen = Conditions.joined([self._seen_by(link, overs[link]) for link in links if link in overs])
        self._launched, self._folder, self._left_s = (), None, None
        survivors = [f"host {link.host}: {over.survivors}" for link, over in overs.items() if over.survivors]
        if survivors:
            raise RanksAlive("; ".join(survivors))

    def _over(self, link: NodeLink, order: int, ends_s: float) -> LaunchOver | None:
        """What a host answers to a kill; None where it is lost."""
        while order not in link.answers and link.why_lost is None:
            if now_s() > ends_s:
                link.give_up("it did not end its ranks")
            self._events.sleep(0.2)
        over = link.answers.pop(order, None)
        return over if isinstance(over, LaunchOver) else None

    def _seen_by(self, link: NodeLink, over: LaunchOver) -> Conditions:
        gang = self._hosts.gang
        assert gang is not None
        interface = gang.address_of(link).interface if len(self._launched) > 1 else None
        nodes = [node.model_copy(update={"host": link.host, "interface": interface}) for node in over.seen.nodes]
        return over.seen.model_copy(update={"nodes": tuple(nodes)})

    def seen(self) -> Conditions:
        """What each host saw during the last launch; nothing of one that was lost."""
        return self._seen

    def require_fit(self, give_up: Callable[[], bool]) -> None:
        """`prepare` has asked every host already."""

    def close(self) -> None:
        """End ranks and node agents everywhere, and give the hosts back."""
        try:
            self.kill()
        finally:
            self._hosts.close()
            self._engine.close()


def _prepared(gang: Gang) -> Prepared:
    first = gang.ready[0]
    return Prepared(isolation=first.isolation, operators_built=first.operators_built)


def _shares(gang: Gang, launch: Launch, nodes: int, port: int | None) -> dict[NodeLink, Launch]:
    """Each host's ranks, host by host, and where they meet."""
    per_host = launch.ranks // nodes
    shares = {}
    for index, (link, own) in enumerate(list(zip(gang.links, gang.addresses, strict=True))[:nodes]):
        met = {} if port is None else {**rendezvous(gang.addresses[0].address, port), **variables(own)}
        shares[link] = launch.share(index * per_host, per_host, met)
    return shares
