"""When the processes of a trial must be gone, as the agent last wrote it into the trial directory with its lease.

A rank holds it by itself, and the host for all: an agent that is stopped (SIGSTOP) cannot end anything. Seconds on
CLOCK_BOOTTIME, which goes on while a machine sleeps and is the same for every process.
"""

import os
import signal
import threading
import time
from pathlib import Path

_FILE = "deadline"
_POLL_S = 0.5


def has_passed(folder: Path) -> bool:
    """Whether the trial's time is over; without the file there is no limit."""
    try:
        return time.clock_gettime(time.CLOCK_BOOTTIME) >= float((folder / _FILE).read_text())
    except (OSError, ValueError):
        return False


def hold(folder: Path) -> None:
    """From now on, end this process and its process group when the deadline has passed.

    A thread, which sleeps but for two looks at a small file per second. Python code and torch's operators both let it run.
    """
    threading.Thread(target=_watch, args=(folder,), name="deadline", daemon=True).start()


def _watch(folder: Path) -> None:
    while not has_passed(folder):
        time.sleep(_POLL_S)
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
