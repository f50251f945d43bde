"""Main part of the node agent: lock this host's devices, get ready, then execute the agent's orders until the agent has
ended or is silent.

The main thread alone touches devices and ranks: the kernel ties children to the thread that started them.
"""

import functools
import hashlib
import logging
import os
import platform
import tempfile
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path

from shardtune.api_schemas.access import private_folder
from shardtune.api_schemas.machines.hardware import Fingerprint
from shardtune.workers.config.allowlist import GROUP, Allowed
from shardtune.workers.config.settings import WorkerSettings
from shardtune.workers.gang.messages import (
    AgentMessage,
    Begin,
    KillOrder,
    LaunchOrder,
    ListenOrder,
    NodeReady,
    OrderDone,
    PrepareOrder,
    ReachOrder,
    SharedOrder,
    StageOrder,
)
from shardtune.workers.launchers.base import LaunchFailed, Prepared
from shardtune.workers.launchers.local import LocalLauncher
from shardtune.workers.launchers.operators import OperatorBuild
from shardtune.workers.machine import device_hold, library_probe
from shardtune.workers.machine.device_watch import DevicesUnfit
from shardtune.workers.machine.inventory import Gpus, Libraries, ranks_of
from shardtune.workers.machine.offered_inventory import detect_again, offer
from shardtune.workers.node import addresses
from shardtune.workers.node.agent_line import AgentConnection
from shardtune.workers.node.launch_here import NodeLaunch
from shardtune.workers.trial_dir import DiskFull

_IDLE_S, _BUSY_S = 0.5, 0.05
"""Seconds that the main thread waits before it checks for something else. While no ranks run, it waits for an order
(first value); while ranks run, for their events (second value)."""
_FORMER = 3
"""Number of leases for which a new node agent waits until an earlier one on this host has ended. That covers the
earlier one's lease and the time to end its ranks."""

log = logging.getLogger(__name__)


def serve(begin: Begin, line: AgentConnection) -> None:
    """Execute the agent's orders until the connection is over. No child process is left then.

    Raises:
        ValueError: the agent's settings do not fit this host.
        DetectionFailed, DevicesBusy, LaunchFailed, DiskFull: this host cannot work.
        RanksAlive: a process survived SIGKILL.
    """
    settings = host_settings(begin)
    for name in begin.without:
        # Of this process, whose children inherit it: an engine's OMP_NUM_THREADS would otherwise reach the ranks.
        os.environ.pop(name, None)
    os.environ.update(begin.environment)
    allowed = Allowed.of(settings.allowed_models, settings.allowed_scripts)
    with device_hold.hold_devices(settings, settings.ranks, patience_s=_FORMER * begin.lease_s) as (gpus, launcher):
        prepared = device_hold.prepare(launcher, lambda: line.is_over)
        if prepared is None or line.is_over:
            return
        # Now and not before a trial: other hosts would wait for this one in the middle of a run.
        operator_build = device_hold.operator_build(settings, launcher, prepared)
        if operator_build is not None:
            operator_build.run(lambda: line.is_over)
            if line.is_over:
                return
        libraries = library_probe.of_prepared(prepared, gpus, ranks_of(gpus, settings.ranks))
        line.send(_ready(settings, gpus, libraries, prepared, allowed))
        inspect_again = functools.partial(detect_again, settings, libraries)
        Node(settings, allowed, line, launcher, inspect_again, operator_build).carry_out_orders()


def host_settings(begin: Begin) -> WorkerSettings:
    """Worker settings for this host, as the agent sent them.

    Raises:
        ValueError: a setting is invalid, or the default work directory in the temporary folder belongs to another user.
    """
    # By default a folder of this host alone: on a shared file system hosts would take each other's locks for their own.
    own_dir = private_folder.of_this_user(Path(tempfile.gettempdir()))
    settings = WorkerSettings.model_validate({"work_dir": own_dir / "node", **begin.settings})
    if settings.work_dir == own_dir / "node":
        # Any user of the host can guess this name, and make the folder first.
        private_folder.make(own_dir, "folder of this host (TMPDIR)", is_shared_place=True)
    return settings


def _ready(
    settings: WorkerSettings, gpus: Gpus, libraries: Libraries, prepared: Prepared, allowed: Allowed
) -> NodeReady:
    return NodeReady(
        host=platform.node(),
        inventory=offer(settings, gpus, libraries, allowed, isolation=prepared.isolation),
        isolation=prepared.isolation,
        operators_built=prepared.operators_built,
        addresses=addresses.of_this_host(),
        code=code_digests(allowed),
    )


def code_digests(allowed: Allowed) -> dict[str, str]:
    """Digests of the scripts and entry points that the worker's owner allows, by name. They show whether hosts have
    different files under one name."""
    scripts = {
        f"script {name}": hashlib.sha256(script.path.read_bytes()).hexdigest()
        for name, script in allowed.scripts.items()
    }
    models = {
        f"model {point.name}": f"{point.value} of {point.dist.name} {point.dist.version}" if point.dist else point.value
        for point in entry_points(group=GROUP)
        if point.name in allowed.models
    }
    return scripts | models


def _access_shared(order: SharedOrder) -> OrderDone:
    path = Path(order.path)
    try:
        if order.writes is not None:
            path.write_text(order.writes)
        return OrderDone(order=order.order, word=path.read_text()[:100])
    except OSError as error:
        return OrderDone(order=order.order, error=error.strerror or str(error))


class Node:
    """Host of a gang that is ready, and executes one order of the agent after the other."""

    def __init__(
        self,
        settings: WorkerSettings,
        allowed: Allowed,
        line: AgentConnection,
        launcher: LocalLauncher,
        inspect_again: Callable[[], Fingerprint | None],
        operator_build: OperatorBuild | None = None,
    ) -> None:
        """Prepare the host for orders. `inspect_again` returns the host's present fingerprint (hardware and software
        versions); None if it is unknown."""
        self._line, self._launcher, self._inspect_again = line, launcher, inspect_again
        self._launch = NodeLaunch(settings, allowed, launcher, line, operator_build)
        self._probe_ports = addresses.ProbePorts()
        line.on_renewal(self._launch.move_deadline)

    def carry_out_orders(self) -> None:
        """Execute the agent's orders until the connection is over."""
        while not self._line.is_over:
            order = self._line.next_order(0 if self._launch.is_running else _IDLE_S)
            if order is not None:
                self._obey(order)
            elif self._launch.is_running:
                self._send_rank_events()

    def _send_rank_events(self) -> None:
        try:
            self._launch.send_events(_BUSY_S)
        except LaunchFailed as error:
            self._launch.reject(str(error))

    def _obey(self, order: AgentMessage) -> None:
        match order:
            case KillOrder():
                self._line.send(self._launch.end(order.order))
            case ListenOrder():
                self._line.send(self._probe_ports.listen(order.order, order.address, order.ports))
            case ReachOrder():
                self._line.send(addresses.reach(order.order, order.address, order.port, order.word))
            case SharedOrder():
                self._line.send(_access_shared(order))
            case PrepareOrder() | StageOrder() | LaunchOrder():
                self._line.send(self._try_order(order))
            case _:
                log.warning("unexpected order for a node that is ready: %s", order.kind)

    def _try_order(self, order: PrepareOrder | StageOrder | LaunchOrder) -> OrderDone:
        port = fingerprint = None
        try:
            match order:
                case PrepareOrder():
                    self._prepare()
                    fingerprint = self._inspect_again() if order.needs_fingerprint else None
                case StageOrder():
                    # The store may get one of the tried ports.
                    self._probe_ports.close()
                    port = self._launch.stage(order)
                case LaunchOrder():
                    self._launch.start(order)
        except (DevicesUnfit, DiskFull, LaunchFailed, ValueError, OSError) as error:
            return OrderDone(order=order.order, error=str(error)[:8000])
        return OrderDone(order=order.order, port=port, fingerprint=fingerprint)

    def _prepare(self) -> None:
        self._launcher.prepare(lambda: self._line.is_over)
        self._launcher.require_fit(lambda: self._line.is_over)
