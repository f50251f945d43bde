"""What an engine gives the agent of a gang: hosts, and a pipe of lines to a node agent on each of them."""

import os
import select
import time
from collections.abc import Iterator
from typing import Protocol

from shardtune.workers.launchers.processes import PYTHON

NODE_COMMAND = (*PYTHON, "-m", "shardtune.workers.node")
_WRITE_S = 4.0
"""For a line to be taken: a pipe that is full for so long has no living reader."""


class Pipe(Protocol):
    """Lines to and from one node agent. Closing it ends the process, at the latest by the lease between them."""

    @property
    def host(self) -> str:
        """As people know the host."""

    def lines(self) -> Iterator[bytes]:
        """What the node says, until the pipe is closed at either end; read by one thread."""

    def send(self, line: bytes) -> None:
        """Any thread's; a line for a node that is gone is dropped. Never waits for long."""

    def last_words(self) -> str:
        """The end of what the process wrote for people."""

    def close(self) -> None:
        """Let the process end; may be repeated."""


class Engine(Protocol):
    """Who owns the hosts, and starts and cleans up processes on them."""

    @property
    def worker_name(self) -> str | None:
        """A name for the worker that is the same when the allocation is given out again; None: there is none."""

    def hosts(self) -> tuple[str, ...]:
        """Hosts of this worker's allocation that can be used now, always in the same order."""

    def start(self, host: str) -> Pipe:
        """Start a node agent there. From the main thread."""

    def ends_in_s(self) -> float | None:
        """Until the allocation ends; None: not known to end."""

    def close(self) -> None:
        """Give everything back."""


def write_line(descriptor: int, line: bytes) -> bool:
    """Write to a descriptor that does not block; False where the other end is gone, or does not read."""
    ends_s, rest = time.monotonic() + _WRITE_S, memoryview(line)
    while rest:
        _, ready, _ = select.select([], [descriptor], [], max(0.0, ends_s - time.monotonic()))
        if not ready:
            return False
        try:
            rest = rest[os.write(descriptor, rest) :]
        except BlockingIOError:
            continue
        except OSError:  # its end is closed
            return False
    return True
