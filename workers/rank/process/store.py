"""Process that serves torch's rendezvous store to the ranks of several hosts, for one launch.

The process is no rank, so that it outlives rank 0; the process that started it also ends it. `python -m
shardtune.workers.rank.process.store FOLDER FIRST STOP` prints the store's port; the fork server forks the process
instead.
"""

import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore

from shardtune.workers.rank.process import deadline, parent_death


class PortsTaken(Exception):
    """No port of the range for the rendezvous store is free on this host."""


def serve(folder: Path, ports: range, announce: Callable[[int], object]) -> NoReturn:
    """Serve the rendezvous store on the first free port (0: the kernel chooses) and announce the port; ends with the
    trial's deadline at the latest.

    Raises:
        PortsTaken: no port of the range is free.
    """
    deadline.enforce(folder)
    store = _listen(ports)
    announce(store.port)
    while True:
        # The store's own threads serve; this thread must only not return, which would close it.
        signal.pause()


def _listen(ports: range) -> TCPStore:
    for port in ports:
        try:
            return TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
        except dist.DistNetworkError:
            continue
    raise PortsTaken(
        f"meet_ports ({ports.start}-{ports.stop - 1}): none is free on this host; end what uses them, or give other ports"
    )


def main() -> int:
    """Serve the rendezvous store as a separate process, for ranks that are started without a fork server."""
    parent_death.tie_to_parent()
    folder, first, stop = sys.argv[1:]
    try:
        serve(Path(folder), range(int(first), int(stop)), lambda port: print(port, flush=True))
    except PortsTaken as error:
        print(error, flush=True)
        return 1


if __name__ == "__main__":
    sys.exit(main())
