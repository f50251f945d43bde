"""Become a command that dies with the process that started it: `python parent_death.py PARENT_PID COMMAND…`.

Run as a file, so that nothing of the application is imported before the command takes over.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

_PR_SET_PDEATHSIG = 1


def dies_with_parent(command: Sequence[str]) -> list[str]:
    """Wrap a command so that the kernel kills its process when this process dies, for whatever reason."""
    return [sys.executable, "-I", str(Path(__file__).resolve()), str(os.getpid()), *command]


def main() -> None:
    """Ask the kernel to send SIGKILL to this process when its parent dies, then replace this process by the command."""
    parent = int(sys.argv[1])
    # The setting survives exec; a terminal's Ctrl-C does not reach the command, which has a session of its own.
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        # The parent died before prctl: the kernel signals only deaths after it, so nobody would end this process.
        sys.exit(1)
    os.execvp(sys.argv[2], sys.argv[2:])


if __name__ == "__main__":
    main()
