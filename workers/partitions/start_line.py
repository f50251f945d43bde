"""Common start of all workers of a divided machine, so that no worker's runs disturb another worker's measurements at
its start."""

import select
import sys
from collections.abc import Callable
from typing import IO

READY, GO = b"ready\n", b"go\n"
_LOOK_S = 0.2


def wait_for_all(give_up: Callable[[], bool]) -> bool:
    """Report to the parent process that this worker has measured its hardware, and wait until all workers of the
    machine have; returns false if `give_up` ended the wait."""
    sys.stdout.buffer.write(READY)
    sys.stdout.buffer.flush()
    return receives(sys.stdin.buffer, GO, give_up)


def receives(pipe: IO[bytes], word: bytes, give_up: Callable[[], bool]) -> bool:
    """Whether the other end of a pipe sends a line. False if the pipe is closed before, or if `give_up` ends the
    wait."""
    while not give_up():
        # Short waits: a signal only sets a flag, which `give_up` reads.
        if select.select([pipe], [], [], _LOOK_S)[0]:
            return pipe.readline() == word
    return False
