"""Safe forking of ranks: check whether this process can fork, start a child as a rank, and end the child."""

import json
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import torch

from shardtune.workers.launch import Program
from shardtune.workers.rank.fork_server import threads
from shardtune.workers.rank.process import parent_death, store
from shardtune.workers.rank.programs import PROGRAMS
from shardtune.workers.rank.rank_context import device_kind

_PROBE_PATIENCE_S = 60.0
_STORE_TIMEOUT_S = 20.0

Facts = dict[str, Any]
"""Facts about this machine that a probe in a forked child returned, as a JSON object."""


class CannotFork(Exception):
    """Exception for a machine on which forked ranks would not work. The message names the reason."""


def probe(look: Callable[[], Facts], patience_s: float = _PROBE_PATIENCE_S) -> Facts:
    """Check in a forked child that forked ranks can use torch (and CUDA, where present); returns the facts that `look`
    collected in the child.

    Raises:
        CannotFork: the child failed, or an import started a thread, which a forked child would lack.
    """
    if busy := threads.that_forbid_forking():
        raise CannotFork(f"an import started threads: {', '.join(busy)}")
    host = os.getpid()
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        _exit_with(lambda: _reporting_child(host, look, write))
    os.close(write)
    output = _read_to_end(read, patience_s)
    if output is None:
        os.kill(pid, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if output is None:
        raise CannotFork(f"a forked child that uses torch hung for {patience_s:.0f} s")
    if code != 0:
        reason = output.decode(errors="replace").strip() or "no reason given"
        raise CannotFork(f"a forked child could not use torch (exit code {code}): {reason}")
    facts: Facts = json.loads(output)
    return facts


def _reporting_child(host: int, look: Callable[[], Facts], output: int) -> int:
    """Run the probe in a forked child and write its facts to the pipe. If the probe fails, write its error instead and
    exit with a failure."""
    try:
        return _probe_child(host, look, output)
    except Exception as error:
        with open(output, "w", encoding="utf-8", closefd=False) as file:
            file.write(f"{type(error).__name__}: {error}"[-1500:])
        raise


def _probe_child(host: int, look: Callable[[], Facts], output: int) -> int:
    parent_death.tie_to_parent(host)
    facts = look()
    matrix = torch.ones(512, 512, device=device_kind())
    works = float((matrix @ matrix).sum()) == 512.0**3
    # Last: the reader takes the end of the output for the end of this child.
    with open(output, "w", encoding="utf-8") as file:
        json.dump(facts, file)
    return 0 if works else 1


def can_fork_after(act: Callable[[], object]) -> bool:
    """Whether this process could still fork ranks after it had done this, tried in a forked child: the child must have
    initialised no CUDA and started no thread."""
    host = os.getpid()
    pid = os.fork()
    if pid == 0:

        def run() -> int:
            parent_death.tie_to_parent(host)
            act()
            return int(torch.cuda.is_initialized() or bool(threads.that_forbid_forking()))  # type: ignore[no-untyped-call]

        _exit_with(run)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def _read_to_end(output: int, patience_s: float) -> bytes | None:
    """Read a child's output until the child closes the pipe or ends; None if that takes too long."""
    content, deadline = b"", time.monotonic() + patience_s
    with open(output, "rb", buffering=0) as file:
        while select.select([file], [], [], max(0.0, deadline - time.monotonic()))[0]:
            part = file.read(65536)
            if not part:
                return content
            content += part
    return None


def become_rank(folder: Path, program: Program, environment: dict[str, str], host: int) -> NoReturn:
    """Turn a forked child into a rank: detach it from the fork server, run the rank, and exit without the server's exit
    handlers."""

    def run() -> int:
        _leave_host(host, folder / f"rank_{environment['RANK']}.log")
        os.environ.update(environment)
        return PROGRAMS[program](folder)

    _exit_with(run)


def _leave_host(host: int, log_path: Path) -> None:
    parent_death.tie_to_parent(host)
    os.setpgid(0, 0)
    # A SIGCHLD of the rank's own children would otherwise wake the server through the inherited descriptor.
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(log, 1)
    os.dup2(log, 2)


def fork_store(folder: Path, ports: range, address: str) -> tuple[int, str]:
    """Fork a process that serves the store where ranks rendezvous, at one address of this host. Returns the pid of the
    process, and either the store's port or the reason why there is none."""
    host = os.getpid()
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:

        def run() -> int:
            _leave_host(host, folder / "store.log")
            try:
                store.serve(folder, ports, address, lambda port: os.write(write, str(port).encode()))
            except store.PortsTaken as error:
                os.write(write, str(error).encode())
            return 1

        _exit_with(run)
    os.close(write)
    lead_group(pid)
    reply = os.read(read, 1000).decode() if select.select([read], [], [], _STORE_TIMEOUT_S)[0] else ""
    os.close(read)
    return pid, reply or f"the store did not start; see {folder / 'store.log'}"


def _exit_with(function: Callable[[], int]) -> NoReturn:
    """End a forked child at once, without the exit handlers that belong to the fork server."""
    code = 1
    try:
        code = function()
    except BaseException:  # noqa: BLE001 -- no caller is left to report it
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def lead_group(pid: int) -> None:
    """Make a forked child the leader of a process group of its own."""
    # The child calls it too: whichever is first, a kill right after the fork finds the group.
    try:
        os.setpgid(pid, pid)
    except (ProcessLookupError, PermissionError):
        return


def kill_group(pid: int) -> None:
    """Send SIGKILL to a rank and to all processes that the rank has started."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
