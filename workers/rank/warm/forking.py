"""Forking ranks safely: whether this process may, what a child must do first, and how it is ended."""

import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import torch

from shardtune.workers.launch import Program
from shardtune.workers.rank.place import device_kind
from shardtune.workers.rank.process import parent_death, store
from shardtune.workers.rank.programs import PROGRAMS

_PROBE_TIMEOUT_S = 60.0
_STORE_TIMEOUT_S = 20.0


def probe() -> tuple[bool, str | None]:
    """Whether a forked child can use torch, CUDA included where there is some; with the reason if not."""
    threads = len(list(Path("/proc/self/task").iterdir()))
    if threads != 1:
        return False, f"an import started threads ({threads - 1})"
    pid = os.fork()
    if pid == 0:
        _exit_with(_use_torch)
    deadline = time.monotonic() + _PROBE_TIMEOUT_S
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            return code == 0, None if code == 0 else f"a forked child could not use torch (exit code {code})"
        time.sleep(0.02)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return False, f"a forked child that uses torch hung for {_PROBE_TIMEOUT_S:.0f} s"


def _use_torch() -> int:
    ones = torch.ones(512, 512, device=device_kind())
    return 0 if float((ones @ ones).sum()) == 512.0**3 else 1


def become_rank(folder: Path, program: Program, environment: dict[str, str], host: int) -> NoReturn:
    """In the child: cut what ties it to the host's work, then run the rank and end without the host's clean-up."""

    def run() -> int:
        _leave_host(host, folder / f"rank_{environment['RANK']}.log")
        os.environ.update(environment)
        return PROGRAMS[program](folder)

    _exit_with(run)


def _leave_host(host: int, log_path: Path) -> None:
    parent_death.tie_to_parent(host)
    os.setpgid(0, 0)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(log, 1)
    os.dup2(log, 2)


def fork_store(folder: Path, ports: range) -> tuple[int, str]:
    """A child in which ranks meet: its pid and its port, or in words why there is none."""
    host = os.getpid()
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:

        def run() -> int:
            _leave_host(host, folder / "store.log")
            try:
                store.serve(folder, ports, lambda port: os.write(write, str(port).encode()))
            except store.PortsTaken as error:
                os.write(write, str(error).encode())
            return 1

        _exit_with(run)
    os.close(write)
    lead_group(pid)
    said = os.read(read, 1000).decode() if select.select([read], [], [], _STORE_TIMEOUT_S)[0] else ""
    os.close(read)
    return pid, said or f"the store did not start; see {folder / 'store.log'}"


def _exit_with(function: Callable[[], int]) -> NoReturn:
    """Leave a forked child without running exit handlers that belong to the host."""
    code = 1
    try:
        code = function()
    except BaseException:  # noqa: BLE001 -- nobody above is left to report it
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def lead_group(pid: int) -> None:
    """The child does it too; whoever comes first, a kill right after the fork finds the group."""
    try:
        os.setpgid(pid, pid)
    except (ProcessLookupError, PermissionError):
        return


def kill_group(pid: int) -> None:
    """SIGKILL to a rank and whatever it has started."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
