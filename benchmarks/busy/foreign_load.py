"""Foreign load: processes beside a study that the study did not start, as a browser or a colleague's build is."""

import math
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Literal

from shardtune.service.cli.parent_death import dies_with_parent

Kind = Literal["steady", "bursts"]
PERIOD_S: dict[Kind, float] = {"steady": 0.05, "bursts": 8.0}
"""Seconds in which a process of the load is busy once and idle once."""
_BURNER = Path(__file__).with_name("burner.py")


def fractions(cores: float) -> list[float]:
    """Fraction of a core that each process of the load burns: as few processes as can burn so many cores."""
    count = math.ceil(cores)
    return [cores / count for _ in range(count)]


@contextmanager
def foreign_load(cores: float, kind: Kind) -> Iterator[list[int]]:
    """Keep `cores` cores busy inside the context; yields the processes' ids.

    The kernel ends the processes when this process dies, however it dies.
    """
    with ExitStack() as processes:
        pids = []
        for fraction in fractions(cores):
            command = [sys.executable, "-I", str(_BURNER), str(fraction), str(PERIOD_S[kind])]
            process = subprocess.Popen(dies_with_parent(command), stdin=subprocess.DEVNULL, start_new_session=True)
            processes.callback(_end, process)
            pids.append(process.pid)
        yield pids


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
