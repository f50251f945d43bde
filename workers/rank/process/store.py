"""Process that serves torch's rendezvous store to the ranks of several hosts, for one launch.

The process is no rank, so that it outlives rank 0; the process that started it also ends it. `python -m
shardtune.workers.rank.process.store FOLDER FIRST STOP ADDRESS` prints the store's port; the fork server forks the process
instead.
"""

import errno
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from torch._C._distributed_c10d import TCPStore

from shardtune.workers.rank.process import deadline, parent_death

_BACKLOG = 2048
"""Number of connections that may wait until they are accepted, as large as that of torch's own listener, since all
ranks connect at once."""


class PortsTaken(Exception):
    """Exception for a range of ports of which none is free on this host for the rendezvous store."""


def serve(folder: Path, ports: range, address: str, announce: Callable[[int], object]) -> NoReturn:
    """Serve the rendezvous store (through which ranks find each other) at one address of this host, on the first free
    port of a range, and announce the port. Port 0 means that the kernel chooses. The store ends with the trial's
    deadline at the latest.

    Raises:
        PortsTaken: no port of the range is free.
    """
    deadline.enforce(folder)
    store = _listen(address, ports)
    announce(store.port)
    while True:
        # The store's own threads serve; this thread must only not return, which would close it.
        signal.pause()


def _listen(address: str, ports: range) -> TCPStore:
    for port in ports:
        try:
            # torch itself listens at all addresses, whatever it is given, and the store asks for no password.
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            listener = socket.create_server((address, port), family=family, backlog=_BACKLOG)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            continue
        chosen = listener.getsockname()[1]
        return TCPStore(address, chosen, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())
    raise PortsTaken(
        f"meet_ports ({ports.start}-{ports.stop - 1}): none is free on this host; end what uses them, or give other ports"
    )


def main() -> int:
    """Serve the rendezvous store as a separate process, for ranks that are started without a fork server."""
    parent_death.tie_to_parent()
    folder, first, stop, address = sys.argv[1:]
    try:
        serve(Path(folder), range(int(first), int(stop)), address, lambda port: print(port, flush=True))
    except PortsTaken as error:
        print(error, flush=True)
        return 1


if __name__ == "__main__":
    sys.exit(main())
