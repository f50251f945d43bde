"""Ranks and services in forks of one process that has imported their libraries: a cold start takes seconds of a core.

What is tested is the program, not its start; cold starts and torchrun's have tests of their own.
"""

import multiprocessing
import os
import runpy
import socket
import sys
from collections.abc import Callable, Mapping
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from shardtune.workers.rank.process.parent_death import tie_to_parent

_PATIENCE_S = 200.0
_WARM = multiprocessing.get_context("forkserver")
_WARM.set_forkserver_preload(["tests.support.processes.preloaded_imports"])


def ranks(
    call: Callable[..., object],
    *arguments: Any,
    logs: Path,
    count: int = 2,
    environment: Mapping[str, str] | None = None,
) -> list[str]:
    """Call it in as many processes, each with the environment of its rank; what each printed, into files of a folder.

    Raises:
        AssertionError: one ended with an error, or had to be killed.
    """
    port = _free_port()
    outputs = [logs / f"fork-{rank}.txt" for rank in range(count)]
    processes = []
    for rank, output in enumerate(outputs):
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count, "MASTER_PORT": port}
        names = {"MASTER_ADDR": "127.0.0.1"} | {name: str(value) for name, value in place.items()}
        processes.append(fork(call, *arguments, output=output, environment={**(environment or {}), **names}))
    codes = [_wait(process) for process in processes]
    printed = [output.read_text() for output in outputs]
    assert codes == [0] * count, (codes, [text[-4000:] for text in printed])
    return printed


def fork(
    call: Callable[..., object], *arguments: Any, output: Path, environment: Mapping[str, str] | None = None
) -> ForkServerProcess:
    """Start a process that calls this and prints to a file; its environment is this one's with changes."""
    process = _WARM.Process(
        target=_begin, args=(os.environ | (environment or {}), output, call, arguments), daemon=True
    )
    process.start()
    return process


def script(path: Path, *arguments: str) -> None:
    """Run a script as `python path arguments` does; to be called in a fork."""
    sys.argv = [str(path), *arguments]
    sys.path.insert(0, str(path.parent))
    runpy.run_path(str(path), run_name="__main__")


def output_of(module: str, *arguments: str, log: Path, environment: Mapping[str, str] | None = None) -> str:
    """Output of `python -m module arguments`, stderr included."""
    process = fork(_module, module, *arguments, output=log, environment=environment)
    assert _wait(process) == 0, log.read_text()[-4000:]
    return log.read_text()


class Service:
    """`shardtune serve` on a listening socket, with what tests ask of a `subprocess.Popen`."""

    def __init__(self, listener: socket.socket, log: Path, environment: Mapping[str, str], *options: str) -> None:
        self._process = fork(_serve, listener, *options, output=log, environment=environment)
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        """Exit code; None while it runs."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the exit code.

        Raises:
            AssertionError: it runs on.
        """
        self._process.join(timeout)
        code = self._process.exitcode
        assert code is not None, f"the service (process {self.pid}) runs on"
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal to a process that may have ended."""
        if self.poll() is None:
            os.kill(self.pid, number)


def _serve(listener: socket.socket, *options: str) -> None:
    tie_to_parent()
    _module("shardtune", "serve", "--fd", str(listener.detach()), *options)


def _module(name: str, *arguments: str) -> None:
    sys.argv = [name, *arguments]
    runpy.run_module(name, run_name="__main__", alter_sys=True)


def _wait(process: ForkServerProcess) -> int | None:
    process.join(_PATIENCE_S)
    code = process.exitcode
    process.kill()
    process.join()
    return code


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _begin(environment: dict[str, str], output: Path, call: Callable[..., object], arguments: tuple[Any, ...]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    there = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(there, 1)
    os.dup2(there, 2)
    call(*arguments)
