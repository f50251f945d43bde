"""Processes the command line starts on this machine: tied to its life, logged to a file, stopped in order."""

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

from shardtune.api_schemas.machines.hardware import Inventory
from shardtune.service.cli.errors import InputError, PlatformFailure
from shardtune.service.cli.parent_death import dies_with_parent

_LOG_TAIL_LINES = 15
MODULE = (sys.executable, "-P", "-m")
"""Runs a module of the installation; -P, since a folder `workers` in the working directory must not be taken for it."""


class Child:
    """A process in a session of its own, whose output goes to a log file."""

    def __init__(
        self, name: str, command: Sequence[str], log: Path, *, environment: dict[str, str] | None = None
    ) -> None:
        self.name, self.command, self.log = name, list(command), log
        self._environment = {**os.environ, **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, pass_fds: Sequence[int] = ()) -> None:
        """Start the process; it is killed when this one dies, however that happens."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                dies_with_parent(self.command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment,
                start_new_session=True,
                pass_fds=tuple(pass_fds),
            )

    def exit_code(self) -> int | None:
        """None while it runs."""
        assert self._process is not None, "start it first"
        return self._process.poll()

    def stop(self, patience_s: float) -> None:
        """SIGTERM, and SIGKILL to the whole session's group when it has not ended in time."""
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(patience_s)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()

    def log_tail(self) -> list[str]:
        """The end of its output."""
        try:
            return self.log.read_text(errors="replace").splitlines()[-_LOG_TAIL_LINES:]
        except OSError:
            return []

    def failure(self, what: str) -> PlatformFailure:
        """The error to raise when it is gone, with the end of its log."""
        tail = [f"  {line}" for line in self.log_tail()]
        return PlatformFailure(f"{self.name} {what}; its log is {self.log}:", *tail)


def wait_until(done: Callable[[], bool], child: Child, patience_s: float, what: str) -> None:
    """Poll until `done`.

    Raises:
        PlatformFailure: the child ended, or the time passed.
    """
    until = time.monotonic() + patience_s
    while not done():
        code = child.exit_code()
        if code is not None:
            raise child.failure(f"ended with exit code {code} before it was {what}")
        if time.monotonic() > until:
            raise child.failure(f"was not {what} after {patience_s:.0f} s")
        time.sleep(0.1)


def listening_socket(host: str = "127.0.0.1", port: int = 0) -> socket.socket:
    """A socket whose free port the operating system chose; passing it on leaves no moment in which another takes it.

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
    """What a worker on this machine, or with further options of `python -m shardtune.workers`, would offer.

    Raises:
        PlatformFailure: the worker cannot tell.
    """
    command = [*MODULE, "shardtune.workers", "detect", "--json", *(["--ranks", str(ranks)] if ranks else []), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 2:
        raise InputError(*done.stderr.strip().splitlines())
    try:
        return Inventory.model_validate(json.loads(done.stdout))
    except (ValueError, ValidationError):
        tail = [f"  {line}" for line in done.stderr.splitlines()[-_LOG_TAIL_LINES:]]
        raise PlatformFailure(f"`{' '.join(command[1:])}` ended with exit code {done.returncode}:", *tail) from None
