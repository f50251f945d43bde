"""CPU time of a rank together with the processes that it started."""

import contextlib
import os
import time

import psutil


def spent_s() -> float:
    """CPU seconds of this process since its start and of the processes below it: compilers of `torch.compile`, and the
    workers of a script's data loader. Otherwise they would count as other programs, which disturb the run."""
    ended = os.times()
    seconds = time.process_time() + ended.children_user + ended.children_system
    # Those that still run are in no counter of this process: torch keeps its pool of compilers until the end.
    with contextlib.suppress(psutil.Error):
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                seconds += times.user + times.system + times.children_user + times.children_system
    return seconds
