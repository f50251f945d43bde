"""Processes in a network namespace, or with a laboratory's launch tag; by /proc, never by name."""

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tests.lab.claim import MARK

_LIMIT_S = 10.0


def on_host(first: int) -> set[int]:
    """All processes of the host with this process 1, also those in namespaces that they made themselves."""
    own = _namespace(os.getpid(), "pid")
    return {pid for pid in with_host(first) if _namespace(pid, "pid") != own}


def with_host(first: int) -> set[int]:
    """Processes of a network namespace, and our own that entered it: `nsenter` waits outside for what it started."""
    network = _namespace(first, "net")
    return {pid for pid in _all() if network is not None and _namespace(pid, "net") == network}


def marked(folder: Path) -> set[int]:
    """All processes whose environment names the laboratory, but this one."""
    tag = f"{MARK}={folder}".encode()
    return {pid for pid in _all() if tag in _read(pid, "environ").split(b"\0")} - {os.getpid()}


def words_of(pid: int) -> list[str]:
    """Command line of a process; empty when it is gone."""
    return _read(pid, "cmdline").decode(errors="replace").split("\0")[:-1]


def state_of(pid: int) -> str:
    """The kernel's letter for its state (`T` stopped, `Z` only its exit status left), `X` when it is gone."""
    return (_read(pid, "stat").decode().rpartition(")")[2].split() or ["X"])[0]


def is_dead(pid: int) -> bool:
    """Gone, or only its exit status left."""
    return state_of(pid) in "XZ"


def kill_all(find: Callable[[], set[int]]) -> None:
    """SIGKILL what `find` finds until nothing of it lives."""
    _until(find, signal.SIGKILL, lambda state: state in "XZ")


def stop_all(find: Callable[[], set[int]]) -> None:
    """SIGSTOP what `find` finds until all of it stands still."""
    _until(find, signal.SIGSTOP, lambda state: state in "TXZ")


def resume_all(find: Callable[[], set[int]]) -> None:
    """SIGCONT what `find` finds until nothing of it stands still."""
    _until(find, signal.SIGCONT, lambda state: state != "T")


def _until(find: Callable[[], set[int]], number: signal.Signals, is_done: Callable[[str], bool]) -> None:
    """Again and again: a process may fork between the look and the signal, and one that is dying is not found any more."""
    ends_s, pids = time.monotonic() + _LIMIT_S, find()
    while live_pids := {pid for pid in pids if not is_done(state_of(pid))}:
        assert time.monotonic() < ends_s, f"processes {sorted(live_pids)} took no notice of {number.name}"
        for pid in live_pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        time.sleep(0.01)
        pids = live_pids | find()


def _namespace(pid: int, kind: str) -> str | None:
    """State of a process; None when it is gone."""
    try:
        return str(Path(f"/proc/{pid}/ns/{kind}").readlink())
    except OSError:
        return None


def _all() -> set[int]:
    return {int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()}


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""
