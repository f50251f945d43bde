"""Pipe to a node agent, made of a child process's standard input and output: `srun`, or the node agent itself."""

import os
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from shardtune.api_schemas.access import private_folder
from shardtune.workers.gang.messages import MAX_LINE_BYTES
from shardtune.workers.gang.pipe import write_line
from shardtune.workers.launchers.processes import start_child
from shardtune.workers.trial_dir import tail


class CommandPipe:
    """Pipe to a command that becomes, or starts, a node agent."""

    def __init__(
        self, host: str, command: Sequence[str], environment: Mapping[str, str], log_path: Path, leaves_s: float = 2.0
    ) -> None:
        """Start the command. `leaves_s`: seconds that the command may take to end after its input was closed."""
        self._host = host
        self._log_path = log_path
        self._leaves_s = leaves_s
        private_folder.make(log_path.parent, "work_dir")
        with log_path.open("wb") as log:
            self.process = start_child(command, environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
        assert self.process.stdin is not None
        # A full pipe of a hung host must not block the thread that answers the other hosts.
        os.set_blocking(self.process.stdin.fileno(), False)
        self._writing = threading.Lock()
        self._is_open = True

    @property
    def host(self) -> str:
        """Name of the node agent's host (see `Pipe.host`)."""
        return self._host

    def lines(self) -> Iterator[bytes]:
        """Lines that the node agent prints, until the pipe is closed (see `Pipe.lines`)."""
        assert self.process.stdout is not None
        try:
            while (line := self.process.stdout.readline(MAX_LINE_BYTES)).endswith(b"\n"):
                yield line
        except (OSError, ValueError):  # closed by `close` meanwhile
            return

    def send(self, line: bytes) -> None:
        """Send a line to the node agent (see `Pipe.send`)."""
        assert self.process.stdin is not None
        with self._writing:
            if self._is_open:
                self._is_open = write_line(self.process.stdin.fileno(), line)

    def log_end(self) -> str:
        """End of the node agent's log (see `Pipe.log_end`)."""
        return (tail(self._log_path, 1500) or "").strip()

    def close(self) -> None:
        """End the node agent: close its input, then send SIGTERM, on which `srun` kills its step, then SIGKILL (see
        `Pipe.close`)."""
        assert self.process.stdin is not None
        with self._writing:
            self._is_open = False
            if not self.process.stdin.closed:
                self.process.stdin.close()
        for send_signal in (None, self.process.terminate, self.process.kill):
            if send_signal is not None:
                send_signal()
            try:
                self.process.wait(self._leaves_s)
                return
            except subprocess.TimeoutExpired:
                continue
