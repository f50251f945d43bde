"""All workers of a divided machine begin together: what one measures of the machine at its start, none disturbs by a run."""

import select
import sys
from collections.abc import Callable
from typing import IO

READY, GO = b"ready\n", b"go\n"
_LOOK_S = 0.2


def wait_for_all(give_up: Callable[[], bool]) -> bool:
    """Say that this worker has measured what it offers, and return once all have; False when `give_up` said so."""
    sys.stdout.buffer.write(READY)
    sys.stdout.buffer.flush()
    return hears(sys.stdin.buffer, GO, give_up)


def hears(heard: IO[bytes], word: bytes, give_up: Callable[[], bool]) -> bool:
    """Whether the other side of a pipe says a word before it closes, and before `give_up` says so."""
    while not give_up():
        if select.select([heard], [], [], _LOOK_S)[0]:
            return heard.readline() == word
    return False
