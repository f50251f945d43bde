"""Programs of ranks in forks of one process that has imported torch: a cold start takes seconds of a core, a fork none.

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

_PATIENCE_S = 200.0
_WARM = multiprocessing.get_context("forkserver")
_WARM.set_forkserver_preload(["tests.support.warm_imports"])


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
    """What `python path arguments` does; to be called in a fork."""
    sys.argv = [str(path), *arguments]
    sys.path.insert(0, str(path.parent))
    runpy.run_path(str(path), run_name="__main__")


def output_of(module: str, *arguments: str, log: Path, environment: Mapping[str, str] | None = None) -> str:
    """What `python -m module arguments` prints; what it says on stderr as well."""
    process = fork(_module, module, *arguments, output=log, environment=environment)
    assert _wait(process) == 0, log.read_text()[-4000:]
    return log.read_text()


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
