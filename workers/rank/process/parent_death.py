"""Ties a process to its parent: when the parent dies, however it dies, the kernel kills the process."""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1

PARENT_VARIABLE = "SHARDTUNE_PARENT_PID"
"""Set by a launcher that execs a rank or the host, so that a parent that died before the call below is noticed."""


def tie_to_parent(parent: int | None = None, sign: signal.Signals = signal.SIGKILL) -> None:
    """Ask the kernel for SIGKILL (or `sign`) when the parent ends; leave at once if it has ended already.

    `parent` is the expected process id; without it the launcher's environment variable is used, if set.
    The kernel looks at the thread that started this process, so launchers must start it from a thread that stays.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, sign, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    expected = parent if parent is not None else int(os.environ.get(PARENT_VARIABLE, "0"))
    if expected and os.getppid() != expected:
        sys.exit(f"parent process {expected} has ended")
