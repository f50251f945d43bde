"""Become another program that the kernel kills when its parent dies: `tether.py PARENT_PID PROGRAM [ARGUMENT…]`.

A file of its own, run as a script, because Popen's `preexec_fn` is unsafe in a process with threads. The kernel keeps
the death signal over exec and ties it to the parent *thread*, so start this from a thread that lives as long as the ranks may.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Set the death signal, make sure that it was not too late, exec."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    # A parent that died before the call above sends nothing any more.
    if os.getppid() != parent:
        sys.exit(f"parent {parent} died before {command[0]} could start")
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
