"""Interface of an engine to the agent of a gang: hosts, and a pipe of lines to a node agent on each of them."""

import os
import select
import time
from collections.abc import Iterator
from typing import Protocol

from shardtune.workers.launchers.processes import PYTHON

NODE_COMMAND = (*PYTHON, "-m", "shardtune.workers.node")
_WRITE_S = 4.0
"""Seconds for a line to be taken: a pipe that is full for longer has no living reader."""


class Pipe(Protocol):
    """Pipe of lines to and from one node agent. Closing it ends the process, at the latest by the lease between them."""

    @property
    def host(self) -> str:
        """Name of the host for people."""

    def lines(self) -> Iterator[bytes]:
        """Lines of the node agent, until the pipe is closed at either end; one thread reads them."""

    def send(self, line: bytes) -> None:
        """Send a line; any thread may call it. A line for a node that is gone is dropped. Never waits for long."""

    def log_end(self) -> str:
        """End of the process's log."""

    def close(self) -> None:
        """End the process; may be called again."""


class Engine(Protocol):
    """Owner of the hosts, which starts and cleans up processes on them."""

    @property
    def worker_name(self) -> str | None:
        """Name for the worker that stays the same when the allocation is granted again; None where there is none."""

    def hosts(self) -> tuple[str, ...]:
        """Usable hosts of this worker's allocation, always in the same order."""

    def start(self, host: str) -> Pipe:
        """Start a node agent on a host; call it from the main thread."""

    def ends_in_s(self) -> float | None:
        """Seconds until the allocation ends; None where unknown."""

    def close(self) -> None:
        """Release the allocation."""


def write_line(descriptor: int, line: bytes) -> bool:
    """Write to a non-blocking descriptor; false where the other end is gone or does not read."""
    ends_s, remaining = time.monotonic() + _WRITE_S, memoryview(line)
    while remaining:
        _, ready, _ = select.select([], [descriptor], [], max(0.0, ends_s - time.monotonic()))
        if not ready:
            return False
        try:
            remaining = remaining[os.write(descriptor, remaining) :]
        except BlockingIOError:
            continue
        except OSError:  # its end is closed
            return False
    return True
