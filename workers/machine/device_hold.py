"""This machine in the hands of one agent: its devices under lock, a launcher for ranks on them, eyes on the GPUs."""

import contextlib
import logging
from collections.abc import Callable, Iterator

from shardtune.workers import status_note
from shardtune.workers.config.settings import WorkerSettings
from shardtune.workers.launchers.base import LaunchFailed, Prepared
from shardtune.workers.launchers.cold import RANK_COMMAND
from shardtune.workers.launchers.fork_server import HOST_COMMAND
from shardtune.workers.launchers.local import LocalLauncher
from shardtune.workers.launchers.processes import rank_environment
from shardtune.workers.machine import device_lock, rank_devices
from shardtune.workers.machine.conditions import HostObserver
from shardtune.workers.machine.device_watch import DeviceWatch
from shardtune.workers.machine.inventory import Gpus, find_gpus, ranks_of

_DYING_S = {False: 3.0, True: 30.0}
"""How long a killed rank may take to be gone, by whether it has a GPU: the driver first takes down the context, and unpins
what may be most of the host's memory."""

log = logging.getLogger(__name__)


@contextlib.contextmanager
def hold(settings: WorkerSettings, ranks: int | None, patience_s: float = 0.0) -> Iterator[tuple[Gpus, LocalLauncher]]:
    """Hold this machine's devices and a launcher for them that watches them; on the way out no child of ours is left.

    `patience_s`: how long a former holder of the devices may take to be gone.
    """
    chosen = find_gpus().first(ranks)
    environment = {**rank_environment(), "PYTHONUNBUFFERED": "1", **rank_devices.environment(chosen)}
    mark = device_lock.pool_mark(settings.work_dir, chosen.uuids)
    settings.work_dir.mkdir(parents=True, exist_ok=True)
    with _lock(settings, chosen, patience_s), contextlib.ExitStack() as stack:
        status_note.clear(settings.work_dir)
        watch = DeviceWatch(chosen.uuids, settings.work_dir) if chosen.devices else None
        if watch is not None:
            stack.callback(watch.close)
            watch.start()
        log_path = settings.work_dir / f"host-{mark}.log"
        launcher = LocalLauncher(
            environment,
            mark,
            log_path,
            settings.host_ready_s,
            cold=settings.cold,
            dying_s=_DYING_S[bool(chosen.devices)],
            commands=((*HOST_COMMAND, str(ranks_of(chosen, ranks))), RANK_COMMAND),
            observer=HostObserver(watch),
        )
        stack.callback(launcher.close)
        yield chosen, launcher


def _lock(settings: WorkerSettings, chosen: Gpus, patience_s: float) -> contextlib.AbstractContextManager[None]:
    """Of a machine that workers divide, who has started them holds all devices, and each of them its own run by run."""
    if settings.share is not None:
        return contextlib.nullcontext()
    return device_lock.hold(settings.work_dir, chosen.uuids, patience_s=patience_s)


def prepare(settings: WorkerSettings, launcher: LocalLauncher, give_up: Callable[[], bool]) -> Prepared | None:
    """Everything that would cost the first trial time; None when `give_up` said so."""
    log.info("importing the libraries of the ranks")
    try:
        prepared = launcher.prepare(give_up)
    except LaunchFailed:
        if give_up():
            return None
        raise
    log.info("isolation of the ranks: %s", prepared.isolation)
    if settings.build_operators and not prepared.operators_built:
        launcher.build_operators(settings.work_dir, give_up)
    return prepared
