"""Child processes of the command line: tied to its lifetime, logged to a file, stopped in order."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from pydantic import ValidationError

from shardtune.api_schemas import log_lines
from shardtune.api_schemas.access import private_folder
from shardtune.api_schemas.machines.hardware import Inventory
from shardtune.service.cli.errors import InputError, PlatformFailure
from shardtune.service.cli.parent_death import dies_with_parent

_LOG_TAIL_LINES = 15
MODULE = (sys.executable, "-P", "-m")
"""Command prefix that runs an installed Python module. The option -P keeps a folder `workers` in the working directory
from shadowing the module."""


class Child:
    """A child process in a session of its own, whose output goes to a log file."""

    def __init__(
        self, name: str, command: Sequence[str], log: Path, *, environment: dict[str, str] | None = None
    ) -> None:
        self.name, self.command, self.log = name, list(command), log
        self._environment = {**os.environ, **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, pass_fds: Sequence[int] = ()) -> None:
        """Start the process; the kernel kills it when this process dies, for whatever reason."""
        private_folder.make(self.log.parent, "folder of the logs")
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                dies_with_parent(self.command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment,
                # A session of its own keeps Ctrl-C of the terminal from the child: the parent stops it in order.
                start_new_session=True,
                pass_fds=tuple(pass_fds),
            )

    def exit_code(self) -> int | None:
        """Return the exit code; None while the process runs."""
        assert self._process is not None, "start it first"
        return self._process.poll()

    def stop(self, patience_s: float) -> None:
        """Send SIGTERM to the process. If it still runs after `patience_s` seconds, send SIGKILL to the whole process
        group."""
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(patience_s)
            except subprocess.TimeoutExpired:
                # The group, not the process alone: ranks of a worker that hangs would keep their GPUs.
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()

    def log_tail(self) -> list[str]:
        """Return the last lines of the process's output."""
        try:
            lines = self.log.read_text(errors="replace").splitlines()[-_LOG_TAIL_LINES:]
            return [text for line in lines for text in log_lines.as_text(line).splitlines()]
        except OSError:
            return []

    def failure(self, event: str) -> PlatformFailure:
        """Return the error for a process that ended unexpectedly, with the last lines of its log."""
        tail = [f"  {line}" for line in self.log_tail()]
        return PlatformFailure(f"{self.name} {event}; its log is {self.log}:", *tail)


def wait_until(done: Callable[[], bool], child: Child, patience_s: float, state: str) -> None:
    """Call `done` again and again until it returns True; error messages name that condition by `state`.

    Raises:
        PlatformFailure: the child process ended, or the time limit passed.
    """
    until = time.monotonic() + patience_s
    while not done():
        code = child.exit_code()
        if code is not None:
            raise child.failure(f"ended with exit code {code} before it was {state}")
        if time.monotonic() > until:
            raise child.failure(f"was not {state} after {patience_s:.0f} s")
        time.sleep(0.1)


def listening_socket(host: str = "127.0.0.1", port: int = 0) -> socket.socket:
    """Open a listening socket; port 0 lets the operating system choose a free port.

    Raises:
        InputError: the address cannot be used.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=128)
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no host name"
        raise InputError(f"--host ({host}), --port ({port}): {reason}; choose another address or port") from None


def detect_inventory(ranks: int | None, options: Sequence[str] = ()) -> Inventory:
    """Return the hardware and software that a worker here, with these options of `python -m shardtune.workers`, would
    offer.

    Raises:
        PlatformFailure: the worker cannot detect them.
    """
    command = [*MODULE, "shardtune.workers", "detect", "--json", *(["--ranks", str(ranks)] if ranks else []), *options]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    if process.returncode == 2:
        raise InputError(*process.stderr.strip().splitlines())
    try:
        return Inventory.model_validate(json.loads(process.stdout))
    except (ValueError, ValidationError):
        tail = [f"  {line}" for line in process.stderr.splitlines()[-_LOG_TAIL_LINES:]]
        raise PlatformFailure(f"`{' '.join(command[1:])}` ended with exit code {process.returncode}:", *tail) from None
