"""Locks on the devices of a host partition for one run, on the machine itself, in addition to the service's scheduling.

The service leases no runs that overlap. But a run that the service has ended may have ranks that have not ended yet, on
this worker's devices or, for a run that needs the host alone, on other devices: the locks wait for these ranks, and are
released when the process that has them ends.
"""

import contextlib
import fcntl
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from shardtune.api_schemas.access import private_folder
from shardtune.api_schemas.machines.host_partition import HostPartition
from shardtune.workers.clock import now_s
from shardtune.workers.machine.device_lock import DevicesBusy

PATIENCE_S = 60.0
"""Seconds to wait for a device lock. They are enough for its holder to end: a worker that lost its lease ends its ranks
within one lease, and a killed rank frees a GPU within 30 s."""


@contextlib.contextmanager
def hold_for_run(
    folder: Path,
    partition: HostPartition,
    is_exclusive: bool,
    give_up: Callable[[], bool],
    patience_s: float = PATIENCE_S,
) -> Iterator[bool]:
    """Context in which a run has locked its devices, and the whole host if `is_exclusive`. Its value is false if
    `give_up` ended the wait.

    `folder`: folder of the lock files, the same for all workers that divide the machine.

    Raises:
        DevicesBusy: another worker did not release the devices in time.
    """
    private_folder.make(folder, "locks of --split")
    until_s = now_s() + patience_s
    # Always in the same order, so that two workers with overlapping sets cannot each hold half.
    locks = [("host", fcntl.LOCK_EX if is_exclusive else fcntl.LOCK_SH)]
    locks += [(device, fcntl.LOCK_EX) for device in sorted(partition.devices)]
    with contextlib.ExitStack() as stack:
        for lock_name, mode in locks:
            path = folder / f"{lock_name}.lock"
            file = stack.enter_context(path.open("w"))
            while not _is_locked(file, mode):
                if give_up():
                    yield False
                    return
                if now_s() > until_s:
                    raise DevicesBusy(
                        f"{lock_name} is still in use by another worker of this machine after {patience_s:g} s (lock {path}); "
                        "look at its log"
                    )
                time.sleep(0.05)
        yield True


def _is_locked(file: IO[str], mode: int) -> bool:
    try:
        fcntl.flock(file, mode | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
