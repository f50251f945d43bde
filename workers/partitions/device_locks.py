"""The devices of a share for one run, on this machine itself: a second look at what the service has decided.

The service gives out no runs that meet. But a run that it has ended may have ranks that are not gone yet, on this worker's
devices or, where a run is to be alone, on others: this waits for them. The locks end with the process that holds them.
"""

import contextlib
import fcntl
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from shardtune.api_schemas.machines.host_partition import HostPartition
from shardtune.workers.clock import now_s
from shardtune.workers.machine.device_lock import DevicesBusy

PATIENCE_S = 60.0
"""A worker that has lost its lease ends its ranks within one; a killed rank gives a GPU back within half a minute."""


@contextlib.contextmanager
def turn(
    folder: Path, share: HostPartition, is_alone: bool, give_up: Callable[[], bool], patience_s: float = PATIENCE_S
) -> Iterator[bool]:
    """Hold the devices, and the host with nobody else on it where `is_alone`; False when `give_up` said so meanwhile.

    `folder`: the same for all workers that divide the machine.

    Raises:
        DevicesBusy: another worker did not let go of them in time.
    """
    folder.mkdir(parents=True, exist_ok=True)
    until_s = now_s() + patience_s
    # Always in the same order, so that two workers with overlapping sets cannot each hold half.
    wanted = [("host", fcntl.LOCK_EX if is_alone else fcntl.LOCK_SH)]
    wanted += [(device, fcntl.LOCK_EX) for device in sorted(share.devices)]
    with contextlib.ExitStack() as stack:
        for what, how in wanted:
            path = folder / f"{what}.lock"
            file = stack.enter_context(path.open("w"))
            while not _is_locked(file, how):
                if give_up():
                    yield False
                    return
                if now_s() > until_s:
                    raise DevicesBusy(
                        f"{what} is still in use by another worker of this machine after {patience_s:g} s (lock {path}); "
                        "look at its log"
                    )
                time.sleep(0.05)
        yield True


def _is_locked(file: IO[str], how: int) -> bool:
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
