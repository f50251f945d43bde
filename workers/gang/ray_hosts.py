"""Hosts of a Ray cluster: a placement group with one bundle per host, and in each bundle an actor that runs the node
agent.

Imported only for this launcher, since `ray` is an optional dependency.
"""

import contextlib
import os
import platform
import queue
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from shardtune.workers.gang.command_pipe import CommandPipe
from shardtune.workers.gang.messages import MAX_LINE_BYTES
from shardtune.workers.gang.pipe import NODE_COMMAND
from shardtune.workers.gang.ray_admission import REMEDY, require_answer, require_closed, require_token
from shardtune.workers.launchers.processes import without_secrets
from shardtune.workers.machine.inventory import DEFAULT_CPU_RANKS

_IDLE_S, _BUSY_S, _BUSY_FOR_S = 0.2, 0.02, 1.0
"""Seconds that one call to the actor waits for a line from the node agent; the wait is shorter while lines are
exchanged. Calls run one after the other, so that a line to the node agent is delayed by this time at most."""
_CALL_S = 60.0


class NodeHolder:
    """Ray actor that starts the node agent. It does so in its main thread, because the node agent dies with the thread
    that started it."""

    def __init__(self, log_dir: str) -> None:
        environment = without_secrets(os.environ)
        self._pipe = CommandPipe(platform.node(), NODE_COMMAND, environment, Path(log_dir) / f"node-{os.getpid()}.log")
        self._lines: queue.Queue[bytes | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self._pipe.lines():
            self._lines.put(line)
        self._lines.put(None)

    def exchange(self, lines: list[bytes], wait_s: float) -> tuple[list[bytes], bool]:
        """Send lines to the node agent and return the lines that it has printed, waiting up to `wait_s` seconds for
        one. Also returns whether more lines may come."""
        for line in lines:
            self._pipe.send(line)
        received: list[bytes] = []
        with contextlib.suppress(queue.Empty):
            line_up = self._lines.get(timeout=wait_s)
            while line_up is not None and sum(map(len, received)) < MAX_LINE_BYTES:
                received.append(line_up)
                line_up = self._lines.get_nowait()
            return received, line_up is not None
        return received, True

    def log_end(self) -> str:
        """Last lines of the node agent's log."""
        return self._pipe.log_end()

    def close(self) -> None:
        """End the node agent's process."""
        self._pipe.close()


class ActorPipe:
    """Pipe to a node agent, made of calls to a `NodeHolder` actor."""

    def __init__(self, host: str, actor: Any) -> None:
        self._host, self._actor = host, actor
        self._outgoing: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._is_open = True

    @property
    def host(self) -> str:
        """Name of the node agent's host (see `Pipe.host`)."""
        return self._host

    def lines(self) -> Iterator[bytes]:
        """Lines that the node agent prints, until the pipe is closed (see `Pipe.lines`)."""
        last_line_s = time.monotonic()
        while self._is_open:
            outgoing = self._drain_outgoing()
            is_busy = outgoing or time.monotonic() - last_line_s < _BUSY_FOR_S
            try:
                lines, more = ray.get(
                    self._actor.exchange.remote(outgoing, _BUSY_S if is_busy else _IDLE_S), timeout=_CALL_S
                )
            except RayError:
                # The actor or its host is dead; the link takes the end of the lines for the loss of the node.
                return
            if outgoing or lines:
                last_line_s = time.monotonic()
            yield from lines
            if not more:
                return

    def _drain_outgoing(self) -> list[bytes]:
        lines: list[bytes] = []
        with contextlib.suppress(queue.Empty):
            while True:
                lines.append(self._outgoing.get_nowait())
        return lines

    def send(self, line: bytes) -> None:
        """Send a line to the node agent (see `Pipe.send`)."""
        self._outgoing.put(line)

    def log_end(self) -> str:
        """End of the node agent's log (see `Pipe.log_end`); empty for a dead actor."""
        try:
            return str(ray.get(self._actor.log_end.remote(), timeout=2))
        except RayError:
            return ""

    def close(self) -> None:
        """End the node agent's process (see `Pipe.close`); the processes that an actor started die with the actor."""
        if self._is_open:
            self._is_open = False
            with contextlib.suppress(RayError):
                ray.get(self._actor.close.remote(), timeout=5)
            with contextlib.suppress(RayError):
                ray.kill(self._actor, no_restart=True)


class RayHosts:
    """Hosts of a Ray cluster, as many as train together, reserved until `close` is called."""

    def __init__(self, address: str | None, nodes: int, ranks: int | None, log_dir: Path, wait_s: float) -> None:
        """Reserve the hosts; `wait_s` is how many seconds the cluster may take to have that many hosts free.

        Raises:
            ValueError: the cluster does not answer, accepts requests without a token, or has too few hosts.
        """
        require_token(os.environ)
        self._log_dir = log_dir
        address = address or os.environ.get("RAY_ADDRESS") or "auto"
        require_answer(address)
        _join(address)
        try:
            # After joining: only then is the address of the cluster's head known, where `auto` was given.
            require_closed(ray.get_runtime_context().gcs_address)
            self._bundle = _bundle(ranks)
            self._group = _group(self._bundle, nodes, wait_s)
        except BaseException:
            ray.shutdown()
            raise

    @property
    def worker_name(self) -> str | None:
        """Return None. A worker's name could be derived from a cluster's name, but a Ray cluster has none that stays
        the same after a restart."""
        return None

    def hosts(self) -> tuple[str, ...]:
        """Hosts of the placement group, in the order of its bundles (one bundle per host)."""
        return tuple(self._placed())

    def _placed(self) -> dict[str, int]:
        names = {
            node["NodeID"]: f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})"
            for node in ray.nodes()
            if node["Alive"]
        }
        bundles = placement_group_table(self._group)["bundles_to_node_id"]
        return {names[node]: index for index, node in sorted(bundles.items()) if node in names}

    def start(self, host: str) -> ActorPipe:
        """Start an actor with a node agent on the host of this bundle (the resources that Ray reserved on one host)."""
        placement = PlacementGroupSchedulingStrategy(
            placement_group=self._group, placement_group_bundle_index=self._placed().get(host, -1)
        )
        # max_restarts=0: Ray would otherwise restart a dead actor, and with it a node agent without a link.
        maker = ray.remote(NodeHolder).options(
            num_cpus=0, num_gpus=self._bundle.get("GPU", 0), max_restarts=0, scheduling_strategy=placement
        )
        return ActorPipe(host, maker.remote(str(self._log_dir)))

    def ends_in_s(self) -> float | None:
        """Return None, since nothing says when a Ray cluster will end."""
        return None

    def close(self) -> None:
        """Release the reserved hosts of the cluster."""
        with contextlib.suppress(RayError):
            remove_placement_group(self._group)
        ray.shutdown()


def _join(address: str) -> None:
    """Join the cluster, and keep the worker's handler of SIGTERM: Ray's ends the process wherever it is (2.60)."""
    handler = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address=address, log_to_driver=False, namespace="shardtune", include_dashboard=False)
    except (RayError, ConnectionError, RuntimeError) as error:
        raise ValueError(f"ray_address ({address}) cannot be used: {error}. {REMEDY}") from None
    finally:
        signal.signal(signal.SIGTERM, handler)


def _bundle(ranks: int | None) -> dict[str, float]:
    """Resources that Ray reserves on one host: the GPUs that its ranks use, or CPU cores on a cluster without GPUs."""
    gpus = max((node["Resources"].get("GPU", 0) for node in ray.nodes() if node["Alive"]), default=0)
    return {"GPU": ranks or gpus} if gpus else {"CPU": ranks or DEFAULT_CPU_RANKS}


def _group(bundle: dict[str, float], nodes: int, wait_s: float) -> PlacementGroup:
    # STRICT_SPREAD: two node agents on one host would compete for its devices.
    group = placement_group([bundle] * nodes, strategy="STRICT_SPREAD")
    try:
        ray.get(group.ready(), timeout=wait_s)
    except GetTimeoutError:
        remove_placement_group(group)
        available = [
            f"{node['NodeManagerHostname']} ({node['Resources'].get('CPU', 0):g} CPU, {node['Resources'].get('GPU', 0):g} GPU)"
            for node in ray.nodes()
            if node["Alive"]
        ]
        resources = ", ".join(f"{count:g} {name}" for name, count in bundle.items())
        raise ValueError(
            f"nodes ({nodes}) hosts with {resources} free each were not there after {wait_s:.0f} s; the cluster has: "
            f"{', '.join(sorted(available)) or 'none'}. Add hosts, or use fewer --nodes or --ranks"
        ) from None
    return group
