"""Processes of the service on one database, which can be killed and started again at the same address."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

import httpx
import psutil

from shardtune.service.cli.parent_death import dies_with_parent
from tests.support.processes import preloaded_forks

_START_S = 60.0


class Replica:
    """One `shardtune serve`. Its listening socket is ours, so its address outlives it."""

    MODULE = "shardtune"
    """Python module that is run as the command."""

    def __init__(
        self,
        database_url: str,
        log: Path,
        within: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        is_cold: bool = False,
        **settings: object,
    ) -> None:
        """`within`: a command that runs another, such as `ip netns exec NAME`. Settings as in service.settings.

        It is a process of its own from the first import on where that is asked for, where it runs within a command,
        and where it has an environment of its own, which a library may read as it is loaded; a fork elsewhere.
        """
        self._within = list(within)
        self._is_cold = is_cold or bool(within) or environment is not None
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self._log = log
        self._environment = os.environ | {"SHARDTUNE_DATABASE_URL": database_url, "SHARDTUNE_LOG_LEVEL": "WARNING"}
        self._environment |= {f"SHARDTUNE_{name.upper()}": str(value) for name, value in settings.items()}
        self._environment |= environment or {}
        self._process: subprocess.Popen[bytes] | preloaded_forks.Service | None = None
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def start(self) -> None:
        """Start the process; `wait_until_ready` tells when it serves."""
        if not self._is_cold:
            self._process = preloaded_forks.Service(self._listener, self._log, self._environment)
            return
        command = [*self._within, sys.executable, "-m", self.MODULE, "serve", "--fd", str(self._listener.fileno())]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                dies_with_parent(command),
                pass_fds=[self._listener.fileno()],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def use_environment(self, environment: Mapping[str, str]) -> None:
        """Set variables for the next start, such as those of another release."""
        self._environment |= environment

    def wait_until_ready(self, patience_s: float = _START_S) -> None:
        """Return when it can work.

        Raises:
            RuntimeError: it ended, or took too long.
        """
        until_s = time.monotonic() + patience_s
        while time.monotonic() < until_s:
            if not self.is_alive():
                raise RuntimeError(f"a replica ended; its log is {self._log}")
            try:
                if httpx.get(f"{self.url}/readyz", timeout=2, trust_env=False).is_success:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.1)
        raise RuntimeError(f"a replica was not ready after {patience_s:g} s; its log is {self._log}")

    def is_alive(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and self._process.poll() is None

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """End the process; the address stays."""
        if self.is_alive():
            self.send(number)
            # One that is frozen would end when it goes on.
            self.send(signal.SIGCONT)
        if self._process is not None:
            self._process.wait()

    def end(self, number: signal.Signals | None = signal.SIGTERM) -> int:
        """Exit code of the process after this signal, or by itself."""
        assert self._process is not None
        if number is not None:
            self.send(number)
        return self._process.wait(timeout=_START_S)

    def send(self, number: signal.Signals) -> None:
        """SIGSTOP freezes it wherever it is, and SIGCONT has it go on there."""
        assert self._process is not None
        self._process.send_signal(number)

    def memory_mib(self, peak: bool = False) -> float:
        """Resident memory of the process, now or at its most."""
        assert self._process is not None
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        match = re.search(rf"^{'VmHWM' if peak else 'VmRSS'}:\s+(\d+) kB", status, re.MULTILINE)
        assert match is not None, status
        return int(match[1]) / 1024

    def cpu_s(self) -> float:
        """Processor time of the process so far."""
        assert self._process is not None
        times = psutil.Process(self._process.pid).cpu_times()
        return float(times.user + times.system)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process and give the address away."""
        self.kill(signal.SIGTERM)
        self._listener.close()
