"""Parent-death signal: the kernel kills a process when its parent dies for any reason."""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1

PARENT_VARIABLE = "SHARDTUNE_PARENT_PID"
"""Environment variable with the pid of the launcher that starts a rank or the fork server. By this pid a process
notices that its parent has died before it called `tie_to_parent`."""


def tie_to_parent(parent: int | None = None, sign: signal.Signals = signal.SIGKILL) -> None:
    """Request SIGKILL (or `sign`) from the kernel for when the parent ends; exit at once if the parent has already
    ended.

    `parent` is the expected process id; without it the launcher's environment variable is used, if set.
    The kernel watches the thread that started this process, so launchers must start it from a thread that stays.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, sign, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    # The parent may have died before prctl; the kernel then sends nothing, so the parent's pid is compared.
    expected = parent if parent is not None else int(os.environ.get(PARENT_VARIABLE, "0"))
    if expected and os.getppid() != expected:
        sys.exit(f"parent process {expected} has ended")
