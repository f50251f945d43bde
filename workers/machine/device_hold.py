"""Use of this machine by one agent: the devices under a lock, a launcher for ranks on them, and a watch on the GPUs."""

import contextlib
import logging
from collections.abc import Callable, Iterator

from shardtune.api_schemas.access import private_folder
from shardtune.workers import leftovers, processor, status_note
from shardtune.workers.config.settings import WorkerSettings
from shardtune.workers.launchers.base import LaunchFailed, Prepared
from shardtune.workers.launchers.cold import RANK_COMMAND
from shardtune.workers.launchers.fork_server import FORK_SERVER_COMMAND
from shardtune.workers.launchers.local import LocalLauncher
from shardtune.workers.launchers.operators import OperatorBuild
from shardtune.workers.launchers.processes import rank_environment
from shardtune.workers.machine import device_lock, rank_devices
from shardtune.workers.machine.conditions import HostObserver
from shardtune.workers.machine.device_watch import DeviceWatch
from shardtune.workers.machine.inventory import Gpus, find_gpus, ranks_of

_DYING_S = {False: 3.0, True: 30.0}
"""Seconds that a killed rank may take to end, by whether it has a GPU. With one it takes longer: the driver first
destroys the CUDA context, and unpins memory that may be most of the host's."""

log = logging.getLogger(__name__)


@contextlib.contextmanager
def hold_devices(
    settings: WorkerSettings, ranks: int | None, patience_s: float = 0.0
) -> Iterator[tuple[Gpus, LocalLauncher]]:
    """Context in which this machine's devices are locked and watched, and a launcher for them is ready. When it is
    left, no child process is alive any more.

    `patience_s`: seconds that the previous user of the devices may take to end.
    """
    chosen = find_gpus().for_ranks(ranks)
    work_dir = private_folder.make(settings.work_dir, "work_dir")
    # torch's own default is a folder in /tmp with the user's name (2.13), which any user can make first: code in it runs.
    # By processor: a work directory may lie in a home folder that unlike hosts share, and kernels are compiled for one.
    kernels = work_dir / f"torchinductor-{processor.digest()}"
    own = {"TORCHINDUCTOR_CACHE_DIR": str(kernels), "PYTHONUNBUFFERED": "1"}
    environment = {**own, **rank_environment(), **rank_devices.environment(chosen)}
    launch_tag = device_lock.launch_tag(settings.work_dir, chosen.uuids)
    with _lock(settings, chosen, patience_s), contextlib.ExitStack() as stack:
        status_note.clear(work_dir)
        leftovers.mark_used(kernels)
        leftovers.remove(work_dir)
        # The watch starts first: the launcher's first run needs a base level of memory from before any rank.
        watch = DeviceWatch(chosen.uuids, work_dir) if chosen.devices else None
        if watch is not None:
            stack.callback(watch.close)
            watch.start()
        log_path = work_dir / f"host-{launch_tag}.log"
        launcher = LocalLauncher(
            environment,
            launch_tag,
            log_path,
            settings.host_ready_s,
            cold=settings.cold,
            dying_s=_DYING_S[bool(chosen.devices)],
            commands=((*FORK_SERVER_COMMAND, str(ranks_of(chosen, ranks))), RANK_COMMAND),
            observer=HostObserver(watch),
        )
        stack.callback(launcher.close)
        yield chosen, launcher


def _lock(settings: WorkerSettings, chosen: Gpus, patience_s: float) -> contextlib.AbstractContextManager[None]:
    """Lock that reserves the devices for as long as the worker lives. A worker with a host partition (a part of the
    machine) takes no such lock, because it locks its devices for each run."""
    # The process that divides the host holds all devices; its workers lock their own run by run.
    if settings.host_partition is not None:
        return contextlib.nullcontext()
    return device_lock.hold_locks(settings.work_dir, chosen.uuids, patience_s=patience_s)


def prepare(launcher: LocalLauncher, give_up: Callable[[], bool]) -> Prepared | None:
    """Import the ranks' libraries, so that the first trial need not spend time on it. Returns None if `give_up` ended
    the wait."""
    log.info("importing the libraries of the ranks")
    try:
        prepared = launcher.prepare(give_up)
    except LaunchFailed:
        if give_up():
            return None
        raise
    log.info("isolation of the ranks: %s", prepared.isolation)
    return prepared


def operator_build(settings: WorkerSettings, launcher: LocalLauncher, prepared: Prepared) -> OperatorBuild | None:
    """Build of DeepSpeed's operators that this machine still needs; None if it has them or the settings leave it to the
    ranks."""
    if not settings.build_operators or prepared.operators_built:
        return None
    return OperatorBuild(lambda give_up: launcher.build_operators(settings.work_dir, give_up))
