"""Work of ranks that cannot report it: a call that keeps Python's interpreter lock, such as `json.loads` of gigabytes, also
stops the thread of the rank that renews the progress file. The kernel's counters of the processes need no such lock."""

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from shardtune.workers.clock import now_s
from shardtune.workers.launchers.processes import tagged_processes
from shardtune.workers.trial_dir import TrialDir

_SILENT_S = 12.0
"""Seconds without a change of the progress file after which the ranks' work is looked at. Ranks that can renew the file do so
every five seconds."""
_PERIOD_S = 3.0
_LEAST_CORES = 0.1
"""Number of cores that one process of a launch must use to count as working: more than the rank's own meter of activity
(`workers.rank.process.activity`) requires, because the work of that meter counts here. Each rank's meter reads a file of every
process on the host: with those of 8 ranks together, 1,400 processes would pass for work."""
_LEAST_BYTES_PER_S = 1e6
"""Bytes per second that one process of a launch must read to count as working, for the same reason more than the rank's own
meter requires."""
_PHASES = ("building", "finishing")
"""Phases of a run in which work counts as progress: until the first step, and while a trace is written. While steps are trained,
a hang may keep a core busy, as CUDA and NCCL spin."""


class SilentWork:
    """Watch on the processes of a launch, which renews the progress file while they work and no rank can say so. The run's
    deadline still limits such work."""

    def __init__(self, launch_tag: str) -> None:
        self._launch_tag = launch_tag
        self._stamp: int | None = None
        self._changed_s = self._looked_s = now_s()
        self._last: _WorkCounters | None = None

    def renew_progress(self, directory: TrialDir) -> None:
        """Renew the launch's progress file if it is silent although the launch's processes work. Call this often."""
        now, stamp = now_s(), directory.progress_stamp()
        if stamp is None or stamp != self._stamp:
            self._stamp, self._changed_s, self._last = stamp, now, None
            return
        if now - self._changed_s < _SILENT_S or now - self._looked_s < _PERIOD_S:
            return
        self._looked_s = now
        progress = directory.progress()
        if progress is None or progress.phase not in _PHASES:
            return
        last, self._last = self._last, _WorkCounters.of(tagged_processes(self._launch_tag))
        if last is not None and self._last.shows_work_since(last):
            with contextlib.suppress(OSError):
                os.utime(directory.path / "progress.json")


@dataclass(frozen=True)
class _WorkCounters:
    """Processor seconds and bytes read of each process so far, at one time."""

    at_s: float
    cpu_s: dict[int, float]
    bytes_read: dict[int, float]

    @classmethod
    def of(cls, pids: set[int]) -> "_WorkCounters":
        return cls(now_s(), {pid: _cpu_s(pid) for pid in pids}, {pid: _bytes_read(pid) for pid in pids})

    def shows_work_since(self, earlier: "_WorkCounters") -> bool:
        """Whether one of the processes used the processor or read data since an earlier reading."""
        elapsed_s = max(self.at_s - earlier.at_s, 1e-9)
        cores = _largest_increase(earlier.cpu_s, self.cpu_s) / elapsed_s
        bytes_per_s = _largest_increase(earlier.bytes_read, self.bytes_read) / elapsed_s
        return cores >= _LEAST_CORES or bytes_per_s >= _LEAST_BYTES_PER_S


def _largest_increase(before: dict[int, float], after: dict[int, float]) -> float:
    # A process that is new has done all its work since.
    return max((count - before.get(pid, 0.0) for pid, count in after.items()), default=0.0)


def _cpu_s(pid: int) -> float:
    """Processor seconds of a process and of its children that have ended; 0 if the process has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return 0.0
    # Fields 14 to 17 of proc(5): utime, stime, cutime, cstime. The text after the name begins with field 3.
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def _bytes_read(pid: int) -> float:
    """Bytes that a process has read: by system calls, and by mapped files from local disks. 0 where the kernel does not
    tell."""
    try:
        lines = Path(f"/proc/{pid}/io").read_text().splitlines()
        counters = dict(line.split(": ") for line in lines)
        return float(counters["rchar"]) + float(counters["read_bytes"])
    except (OSError, ValueError, KeyError):
        return 0.0
