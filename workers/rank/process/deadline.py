"""Deadline of a trial's processes, which the agent writes into the trial directory with each renewal of its lease.

Each rank enforces it, and the fork server for all: a stopped agent (SIGSTOP) cannot end them. Seconds on CLOCK_BOOTTIME,
which runs on while a machine sleeps and is equal in every process.
"""

import os
import signal
import threading
import time
from pathlib import Path

_FILE = "deadline"
_POLL_S = 0.5


def has_passed(folder: Path) -> bool:
    """Whether the trial's deadline has passed; without a deadline file there is no limit."""
    try:
        return time.clock_gettime(time.CLOCK_BOOTTIME) >= float((folder / _FILE).read_text())
    except (OSError, ValueError):
        return False


def enforce(folder: Path) -> None:
    """Start a thread that kills this process and its process group when the deadline has passed."""
    # A thread gets to run beside Python code and torch's operators; it reads a small file twice a second.
    threading.Thread(target=_watch, args=(folder,), name="deadline", daemon=True).start()


def _watch(folder: Path) -> None:
    while not has_passed(folder):
        time.sleep(_POLL_S)
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
