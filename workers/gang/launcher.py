"""Launcher over the hosts of a gang, behind the `Launcher` protocol. `workers.node` does the work on each host."""

from collections.abc import Callable
from pathlib import Path

from pydantic import TypeAdapter

from shardtune.api_schemas.machines.conditions import Conditions
from shardtune.api_schemas.machines.hardware import Inventory
from shardtune.api_schemas.trials.leases import ModelSummaryTask, TargetRehearsalTask, Task
from shardtune.workers.clock import now_s
from shardtune.workers.gang import local_copy
from shardtune.workers.gang.hosts import Gang, GangHosts, GangPlan
from shardtune.workers.gang.link import GangEvents, NodeLink, ask_all
from shardtune.workers.gang.messages import KillOrder, LaunchEnded, LaunchOrder, OrderDone, StageOrder
from shardtune.workers.gang.pipe import Engine
from shardtune.workers.gang.rendezvous import NoRendezvous, interface_variables
from shardtune.workers.launch import Launch, rendezvous
from shardtune.workers.launchers.base import LaunchFailed, LostProcess, Prepared, RankExit, RanksAlive

_TASK: TypeAdapter[Task] = TypeAdapter(Task)
_KILL_S = 120.0
"""Seconds allowed for a node agent to end its host's ranks. If it takes longer, they end with the node agent's
lease."""


class GangLauncher:
    """Launcher of a trial's ranks over the hosts of a gang, one trial at a time."""

    def __init__(self, engine: Engine, plan: GangPlan, wait_s: float) -> None:
        """Prepare the launcher. `wait_s`: maximum seconds to wait until enough hosts for the gang are ready."""
        self._engine, self._plan, self._wait_s = engine, plan, wait_s
        self._events = GangEvents()
        self._hosts = GangHosts(engine, plan, self._events, lambda: self._left_s)
        self._left_s: float | None = None
        self._folder: Path | None = None
        self._launched: tuple[NodeLink, ...] = ()
        self._orders: set[int] = set()
        self._moved = 0
        self._exits: list[RankExit] = []
        self._lost: LostProcess | None = None
        self._conditions = Conditions()

    @property
    def inventory(self) -> Inventory:
        """Inventory (hardware and software) of the hosts that train together, which the worker reports to the service.
        The hosts must be prepared first."""
        return self._hosts.inventory

    @property
    def exits(self) -> tuple[RankExit, ...]:
        """Ends of ranks since the launch, in the order in which their messages arrived."""
        return tuple(self._exits)

    @property
    def lost(self) -> LostProcess | None:
        """Host, or helper process of a host, that was lost during the launch; None if none was. The value is kept until
        the next launch."""
        self._lost = self._lost or self._find_lost()
        return self._lost

    def _find_lost(self) -> LostProcess | None:
        for link in self._launched:
            if (reason := link.loss_reason) is not None:
                return LostProcess(f"host {link.host}: {reason}", is_node=True)
            if link.helper_lost is not None:
                return LostProcess(f"host {link.host}: {link.helper_lost.message}")
        return None

    def prepare(self, give_up: Callable[[], bool]) -> Prepared:
        """Prepare a complete gang of hosts: replace lost hosts, and wait for hosts to become available again.

        Raises:
            ValueError: at the first start, there are too few hosts, they differ, or their settings do not fit them.
        """
        is_first, until_s, trouble = self._hosts.gang is None, now_s() + self._wait_s, ""
        while not give_up():
            self._hosts.start_missing()
            try:
                gang = None if is_first and not self._hosts.is_settled else self._hosts.choose()
            except (ValueError, NoRendezvous) as error:
                if is_first:
                    raise ValueError(str(error)) from None
                gang, trouble = None, str(error)
            if gang is not None and self._hosts.prepare(gang):
                return _prepared(gang)
            if now_s() > until_s:
                raise LaunchFailed(
                    f"there is no gang of {self._plan.nodes} hosts after {self._wait_s:.0f} s: "
                    f"{trouble or self._hosts.problems}"
                )
            self._events.sleep(0.2)
        raise LaunchFailed("asked to stop while the hosts were starting")

    def launch(self, directory: Path, launch: Launch) -> None:
        """Prepare the launch's folder on every host, then start the ranks on all hosts."""
        gang = self._hosts.gang
        assert gang is not None, "prepare first"
        task = None if launch.program == "hardware" else _TASK.validate_json((directory / "task.json").read_bytes())
        nodes = self._plan.nodes if task is None else _nodes_of(task)
        self._begin(directory, gang, nodes)
        # Two phases: the store must listen, and every folder exist, before the first rank looks for its peers.
        staged = ask_all(
            self._launched,
            lambda link, order: StageOrder(
                order=order,
                name=directory.name,
                task=task,
                fingerprint=self.inventory.fingerprint,
                resumes=launch.resumes,
                store_address=gang.addresses[0].address if nodes > 1 and link is self._launched[0] else None,
                ports=self._plan.ports,
            ),
        )
        self._require(staged)
        launches = _launches_by_host(gang, launch, nodes, staged[0].port)
        started = ask_all(self._launched, lambda link, order: self._start(order, launches[link]))
        self._require(started)

    def _begin(self, directory: Path, gang: Gang, nodes: int) -> None:
        self._folder, self._launched, self._moved = directory, gang.links[:nodes], 0
        self._lost, self._conditions = None, Conditions()
        self._exits.clear()
        self._events.ended.clear()
        self._orders.clear()
        # The nodes' ranks must not outlive the agent's own lease, whose end the heartbeat thread writes into this
        # folder.
        self._left_s = local_copy.ranks_end_in_s(directory)
        for link in self._launched:
            link.begin_launch()

    def _start(self, order: int, launch: Launch) -> LaunchOrder:
        self._orders.add(order)
        return LaunchOrder(order=order, launch=launch)

    def _require(self, answers: list[OrderDone]) -> None:
        failed = [
            (link.host, answer.error)
            for link, answer in zip(self._launched, answers, strict=True)
            if answer.error is not None
        ]
        if failed:
            self.kill()
            raise LaunchFailed("; ".join(f"host {host}: {error}" for host, error in failed))

    def wait(self, timeout_s: float) -> None:
        """Wait until a node agent reports an event, and record the event."""
        self._events.sleep(timeout_s)
        self._record_events()
        for link in self._launched:
            if link.rejected is not None:
                raise LaunchFailed(f"host {link.host}: {link.rejected.reason}")

    def _record_events(self) -> None:
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
            # Rewritten only on a change: the supervisor takes the file's modification time for progress.
            self._moved = moved
            local_copy.write_progress(self._folder, progress)

    def kill(self) -> None:
        """End the ranks on all hosts at once."""
        if not self._launched:
            return
        links = self._launched
        orders = {link: link.order(lambda order: KillOrder(order=order)) for link in links if link.loss_reason is None}
        ends_s = now_s() + _KILL_S
        reports = {
            link: report
            for link, order in orders.items()
            if (report := self._await_over(link, order, ends_s)) is not None
        }
        # A lost host ends its ranks by its own lease; until that is over they may still use the network.
        while any(link.loss_reason is not None and now_s() < link.certain_s for link in links):
            self._events.sleep(0.1)
        self._record_events()
        self._lost = self._lost or self._find_lost()
        self._conditions = Conditions.joined(
            [self._conditions_of(link, reports[link]) for link in links if link in reports]
        )
        self._launched, self._folder, self._left_s = (), None, None
        survivors = [f"host {link.host}: {report.survivors}" for link, report in reports.items() if report.survivors]
        if survivors:
            raise RanksAlive("; ".join(survivors))

    def _await_over(self, link: NodeLink, order: int, ends_s: float) -> LaunchEnded | None:
        """Answer of a host to the order to kill its ranks, which is awaited; None if the host is lost."""
        while order not in link.answers and link.loss_reason is None:
            if now_s() > ends_s:
                link.give_up("it did not end its ranks")
            self._events.sleep(0.2)
        answer = link.answers.pop(order, None)
        return answer if isinstance(answer, LaunchEnded) else None

    def _conditions_of(self, link: NodeLink, over: LaunchEnded) -> Conditions:
        gang = self._hosts.gang
        assert gang is not None
        interface = gang.address_of(link).interface if len(self._launched) > 1 else None
        nodes = [node.model_copy(update={"host": link.host, "interface": interface}) for node in over.conditions.nodes]
        return over.conditions.model_copy(update={"nodes": tuple(nodes)})

    def conditions(self) -> Conditions:
        """Conditions (such as load of other programs and throttling) that each host observed during the last launch;
        lost hosts are left out."""
        return self._conditions

    def require_fit(self, give_up: Callable[[], bool]) -> None:
        """Do nothing: `prepare` has checked every host's devices."""

    def close(self) -> None:
        """End ranks and node agents on all hosts, and release the hosts."""
        try:
            self.kill()
        finally:
            self._hosts.close()
            self._engine.close()


def _prepared(gang: Gang) -> Prepared:
    first = gang.ready[0]
    return Prepared(isolation=first.isolation, operators_built=first.operators_built)


def _nodes_of(task: Task) -> int:
    """Number of hosts on which ranks of a task run."""
    return 1 if isinstance(task, ModelSummaryTask | TargetRehearsalTask) else task.cluster.nodes


def _launches_by_host(gang: Gang, launch: Launch, nodes: int, port: int | None) -> dict[NodeLink, Launch]:
    """Message for each host that tells its node agent which ranks to start and where the ranks of all hosts meet."""
    per_host = launch.ranks // nodes
    launches = {}
    for index, (link, address) in enumerate(list(zip(gang.links, gang.addresses, strict=True))[:nodes]):
        environment = (
            {} if port is None else {**rendezvous(gang.addresses[0].address, port), **interface_variables(address)}
        )
        launches[link] = launch.part(index * per_host, per_host, environment)
    return launches
