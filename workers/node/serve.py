"""The node agent: hold this host, get warm, then carry out the agent's orders until it is gone or silent.

The main thread alone touches devices and ranks: the kernel ties children to the thread that started them.
"""

import hashlib
import logging
import os
import platform
import tempfile
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path

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
from shardtune.workers.machine import device_hold, library_probe
from shardtune.workers.machine.device_watch import DevicesUnfit
from shardtune.workers.machine.inventory import Gpus, Libraries, ranks_of
from shardtune.workers.machine.offered_inventory import look_again, offer
from shardtune.workers.node import addresses
from shardtune.workers.node.agent_line import AgentLine
from shardtune.workers.node.launch_here import LaunchHere
from shardtune.workers.trial_dir import DiskFull

_IDLE_S, _BUSY_S = 0.5, 0.05
"""How long the main thread looks one way before it looks the other."""
_FORMER = 3
"""Leases that a former node agent of this host may take to be gone: its own, and what ending its ranks takes."""

log = logging.getLogger(__name__)


def serve(begin: Begin, line: AgentLine) -> None:
    """Live until the line is over; nothing of ours is left then.

    Raises:
        ValueError: the agent's settings do not fit this host.
        DetectionFailed, DevicesBusy, LaunchFailed, DiskFull: this host cannot work.
        RanksAlive: something survived SIGKILL.
    """
    settings = host_settings(begin)
    for name in begin.without:
        os.environ.pop(name, None)
    os.environ.update(begin.environment)
    allowed = Allowed.of(settings.allowed_models, settings.allowed_scripts)
    with device_hold.hold(settings, settings.ranks, patience_s=_FORMER * begin.lease_s) as (gpus, launcher):
        prepared = device_hold.prepare(settings, launcher, lambda: line.is_over)
        if prepared is None or line.is_over:
            return
        libraries = library_probe.found(prepared, gpus, ranks_of(gpus, settings.ranks))
        line.say(_ready(settings, gpus, libraries, prepared, allowed))
        Node(settings, allowed, line, launcher, lambda: look_again(settings, libraries)).obey_all()


def host_settings(begin: Begin) -> WorkerSettings:
    """As the agent says. Unless it says where, in a folder of this host alone: on a shared file system hosts would take each
    other's locks for their own.
    """
    own = Path(tempfile.gettempdir()) / f"shardtune-{os.getuid()}" / "node"
    return WorkerSettings.model_validate({"work_dir": own, **begin.settings})


def _ready(
    settings: WorkerSettings, gpus: Gpus, libraries: Libraries, prepared: Prepared, allowed: Allowed
) -> NodeReady:
    return NodeReady(
        host=platform.node(),
        inventory=offer(settings, gpus, libraries, allowed, isolation=prepared.isolation),
        isolation=prepared.isolation,
        operators_built=prepared.operators_built,
        addresses=addresses.of_this_host(),
        code=contents(allowed),
    )


def contents(allowed: Allowed) -> dict[str, str]:
    """What the allowed code is, so that two hosts with another file under one name are told apart."""
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


def _shared(order: SharedOrder) -> OrderDone:
    path = Path(order.path)
    try:
        if order.writes is not None:
            path.write_text(order.writes)
        return OrderDone(order=order.order, word=path.read_text()[:100])
    except OSError as error:
        return OrderDone(order=order.order, error=error.strerror or str(error))


class Node:
    """A host that is ready, obeying one order after the other."""

    def __init__(
        self,
        settings: WorkerSettings,
        allowed: Allowed,
        line: AgentLine,
        launcher: LocalLauncher,
        look_again: Callable[[], Fingerprint | None],
    ) -> None:
        """`look_again`: what the fingerprint is by now; None: it cannot be told."""
        self._line, self._launcher, self._look_again = line, launcher, look_again
        self._launch, self._tried = LaunchHere(settings, allowed, launcher, line), addresses.TriedPorts()
        line.on_renewal(self._launch.renewed)

    def obey_all(self) -> None:
        """Until the line is over."""
        while not self._line.is_over:
            order = self._line.order(0 if self._launch.is_running else _IDLE_S)
            if order is not None:
                self._obey(order)
            elif self._launch.is_running:
                self._look()

    def _look(self) -> None:
        try:
            self._launch.look(_BUSY_S)
        except LaunchFailed as error:
            self._launch.rejected(str(error))

    def _obey(self, order: AgentMessage) -> None:
        match order:
            case KillOrder():
                self._line.say(self._launch.end(order.order))
            case ListenOrder():
                self._line.say(self._tried.listen(order.order, order.address, order.ports))
            case ReachOrder():
                self._line.say(addresses.reach(order.order, order.address, order.port, order.word))
            case SharedOrder():
                self._line.say(_shared(order))
            case PrepareOrder() | StageOrder() | LaunchOrder():
                self._line.say(self._try(order))
            case _:
                log.warning("an order that a node at work does not expect: %s", order.kind)

    def _try(self, order: PrepareOrder | StageOrder | LaunchOrder) -> OrderDone:
        port = fingerprint = None
        try:
            match order:
                case PrepareOrder():
                    self._prepare()
                    fingerprint = self._look_again() if order.looks else None
                case StageOrder():
                    self._tried.close()
                    port = self._launch.stage(order)
                case LaunchOrder():
                    self._launch.begin(order)
        except (DevicesUnfit, DiskFull, LaunchFailed, ValueError, OSError) as error:
            return OrderDone(order=order.order, error=str(error)[:8000])
        return OrderDone(order=order.order, port=port, fingerprint=fingerprint)

    def _prepare(self) -> None:
        self._launcher.prepare(lambda: self._line.is_over)
        self._launcher.require_fit(lambda: self._line.is_over)
