"""Threads that imports have started in the fork server, which a forked rank would lack."""

import os
import threading
import time
from pathlib import Path

_DRIVER = "cuda"
"""Beginning of the names that NVIDIA's driver gives its threads (driver 580: `cuda00001800007`)."""
_LOOKS = 3
_BETWEEN_LOOKS_S = 0.05


def that_forbid_forking() -> list[str]:
    """Names of this process's other threads. Threads of NVIDIA's driver are left out if they slept while they were
    watched.

    The driver starts such a thread if a library links the driver, as DeepSpeed's imports do. A thread that sleeps holds
    no lock that a forked rank would wait for, and a probe tests separately whether CUDA works in a fork. Threads of
    other libraries are always named: a fork beside a pool of OpenMP threads hangs when the rank computes in parallel.
    """
    if threading.active_count() > 1:
        return [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
    before = _switches()
    if not before:
        # The usual case: nothing to watch, so that the fork server starts without a pause.
        return []
    awake: set[Path] = set()
    for _ in range(_LOOKS):
        awake |= {task for task in before if _state(task) not in ("S", "I")}
        time.sleep(_BETWEEN_LOOKS_S)
    after = _switches()
    asleep = {task for task in after if task not in awake and after[task] == before.get(task)}
    return sorted(_name(task) for task in after if task not in asleep or not _name(task).startswith(_DRIVER))


def _others() -> list[Path]:
    # The main thread's number is the process's. Python 3.11 keeps the parent's `native_id` in a forked child.
    return [task for task in Path("/proc/self/task").iterdir() if task.name != str(os.getpid())]


def _switches() -> dict[Path, str]:
    """Number of context switches of each other thread. It changes whenever the thread has run."""
    return {task: "".join(line for line in _read(task, "status").splitlines() if "ctxt" in line) for task in _others()}


def _state(task: Path) -> str:
    return _read(task, "stat").rpartition(") ")[2][:1]


def _name(task: Path) -> str:
    return _read(task, "comm").strip() or f"thread {task.name}"


def _read(task: Path, name: str) -> str:
    """Content of a file about the thread under /proc; empty if the thread has ended."""
    try:
        return (task / name).read_text()
    except OSError:
        return ""
