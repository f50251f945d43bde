"""Interface of an engine (such as Slurm or Ray) to the agent of a gang: the hosts, and a pipe of lines to a node agent
on each host."""

import os
import select
import time
from collections.abc import Iterator
from typing import Protocol

from shardtune.workers.launchers.processes import PYTHON

NODE_COMMAND = (*PYTHON, "-m", "shardtune.workers.node")
_WRITE_S = 4.0
"""Seconds within which a pipe must accept a line. If the pipe stays full for longer, the process that reads it counts
as dead."""


class Pipe(Protocol):
    """Pipe through which lines are sent to and read from one node agent. Closing the pipe ends the node agent's
    process, at the latest when its lease ends."""

    @property
    def host(self) -> str:
        """Name of the node agent's host, for messages to people."""

    def lines(self) -> Iterator[bytes]:
        """Lines that the node agent prints, until the pipe is closed at either end. Only one thread may read them."""

    def send(self, line: bytes) -> None:
        """Send a line to the node agent; any thread may call this method. If the node agent has ended, the line is
        dropped. The call never blocks for long."""

    def log_end(self) -> str:
        """Last lines of the log of the node agent's process."""

    def close(self) -> None:
        """End the node agent's process; further calls do nothing."""


class Engine(Protocol):
    """Owner of the hosts (such as Slurm or Ray), which starts and cleans up processes on them."""

    @property
    def worker_name(self) -> str | None:
        """Name for the worker that stays the same when the scheduler grants the hosts again; None if the engine offers
        no such name."""

    def hosts(self) -> tuple[str, ...]:
        """Usable hosts of this worker's allocation, always in the same order."""

    def start(self, host: str) -> Pipe:
        """Start a node agent on a host; call it from the main thread."""

    def ends_in_s(self) -> float | None:
        """Seconds until the scheduler takes the hosts away; None if unknown."""

    def close(self) -> None:
        """Release the allocation of hosts."""


def write_line(descriptor: int, line: bytes) -> bool:
    """Write a line to a non-blocking file descriptor; returns false if the other end is closed or does not read."""
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
