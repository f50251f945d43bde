"""CPU time of a rank together with the processes that it started and its share of the fork server's."""

import contextlib
import os
import time

import psutil

PREPARATION_VARIABLE = "SHARDTUNE_PREPARATION_CPU_S"
"""Environment variable of a host's first rank: CPU seconds that the fork server used for the launch before it forked
the ranks."""


def spent_s() -> float:
    """CPU seconds of this process since its start, of the processes below it (compilers of `torch.compile`, workers of a
    script's data loader), and of the fork server while it prepared the launch. Otherwise they would count as other
    programs, which disturb the run."""
    seconds = own_s() + float(os.environ.get(PREPARATION_VARIABLE, "0"))
    # Those that still run are in no counter of this process: torch keeps its pool of compilers until the end.
    with contextlib.suppress(psutil.Error):
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                seconds += times.user + times.system + times.children_user + times.children_system
    return seconds


def own_s() -> float:
    """CPU seconds of this process since its start and of its child processes that have ended."""
    ended = os.times()
    return time.process_time() + ended.children_user + ended.children_system
