"""What an engine gives the agent of a gang: hosts, and a pipe of lines to a node process on each of them."""

from collections.abc import Iterator
from typing import Protocol

from shardtune.workers.launchers.processes import PYTHON

NODE_COMMAND = (*PYTHON, "-m", "shardtune.workers.node")


class Pipe(Protocol):
    """Lines to and from one node process. Closing it ends the process, at the latest by the lease between them."""

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
        """Start a node process there. From the main thread."""

    def ends_in_s(self) -> float | None:
        """Until the allocation ends; None: not known to end."""

    def close(self) -> None:
        """Give everything back."""
