"""Work of a rank while nothing reports its progress, such as a user's script that loads its data and weights."""

import time
from dataclasses import dataclass
from pathlib import Path

from shardtune.workers.rank.process import cpu_time

_LEAST_CORES = 0.01
"""Number of cores that this process and the processes below it must use to count as working. Polling threads, such as
the rank's own, use less."""
_LEAST_BYTES_PER_S = 100e3
"""Bytes per second that this process must read to count as working, whatever processor time it uses: data from a slow
disk costs little of it."""
_IO = Path("/proc/self/io")


class ActivityMeter:
    """Meter that says whether this process or a process below it has worked. One thread must make all calls, because
    the work of this thread does not count. While a call keeps Python's interpreter lock it cannot run, and the launcher looks at the
    rank instead (`launchers.silent_work`)."""

    def __init__(self) -> None:
        self._last: _Reading | None = None

    def has_worked(self) -> bool:
        """Whether there was work since the previous call; true for the first call."""
        last, now = self._last, _Reading.take()
        self._last = now
        if last is None:
            return True
        elapsed_s = max(now.at_s - last.at_s, 1e-9)
        cores = (now.cpu_s - last.cpu_s) / elapsed_s
        bytes_per_s = (now.read_before - last.read_after) / elapsed_s
        return cores >= _LEAST_CORES or bytes_per_s >= _LEAST_BYTES_PER_S


@dataclass(frozen=True)
class _Reading:
    """Processor seconds and bytes read so far, without those of taking this reading."""

    at_s: float
    cpu_s: float
    read_before: int
    read_after: int

    @classmethod
    def take(cls) -> "_Reading":
        """Read the counters. That reads files of all processes, which must not look like the script's data."""
        # First: the seconds of this thread that follow must be in neither of the two figures.
        read_before, own_s = _bytes_read(), time.thread_time()
        cpu_s = cpu_time.spent_s() - own_s
        return cls(time.monotonic(), cpu_s, read_before, _bytes_read())


def _bytes_read() -> int:
    """Bytes that this process has read: by system calls, and by mapped files from local disks. 0 where the kernel does
    not count them."""
    try:
        counters = dict(line.split(": ") for line in _IO.read_text().splitlines())
        return int(counters["rchar"]) + int(counters["read_bytes"])
    except (OSError, ValueError, KeyError):
        return 0
