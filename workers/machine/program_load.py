"""Programs that use the host's CPU cores, by name, as `top` would show them.

Only a program's short name leaves the machine: command lines may contain secrets.
"""

import os
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import psutil

from shardtune.api_schemas.machines.conditions import MOST_PROGRAMS, ProgramLoad
from shardtune.workers.clock import now_s

_LEAST_CORES = 0.05
"""Number of cores below which a program is not named."""
_LONGEST_NAME = 64

_Process = tuple[int, float]
"""Process id and start time, which together identify a process although ids are used again."""


@dataclass(frozen=True)
class ProcessTimes:
    """CPU time of each visible process at one time."""

    at_s: float
    by_process: Mapping[_Process, tuple[str, float]]
    """Name of each process and its CPU seconds since its start, without those of its children."""

    @classmethod
    def now(cls) -> "ProcessTimes":
        """Read the CPU times of all visible processes now."""
        times: dict[_Process, tuple[str, float]] = {}
        for process in psutil.process_iter(["name", "cpu_times", "create_time"]):
            values = process.info
            # None where the process ended meanwhile or is not ours to read.
            if values["cpu_times"] is not None and values["create_time"] is not None:
                spent_s = values["cpu_times"].user + values["cpu_times"].system
                times[process.pid, values["create_time"]] = (_printable(values["name"] or ""), spent_s)
        return cls(now_s(), times)

    def until(self, later: "ProcessTimes", cores: Collection[int]) -> tuple[ProgramLoad, ...]:
        """Programs that used these cores between the two times, busiest first. Processes that ended before `later`,
        such as a run's ranks, are left out."""
        elapsed_s = max(later.at_s - self.at_s, 1e-9)
        totals: dict[str, float] = defaultdict(float)
        for process, (name, spent_s) in later.by_process.items():
            used = (spent_s - self.by_process.get(process, ("", 0.0))[1]) / elapsed_s
            if used >= _LEAST_CORES and _may_use(process[0], cores):
                totals[name] += used
        busiest = sorted(totals.items(), key=lambda item: (-item[1], item[0]))[:MOST_PROGRAMS]
        return tuple(ProgramLoad(name=name, cores=round(used, 2)) for name, used in busiest)


def _may_use(pid: int, cores: Collection[int]) -> bool:
    """Whether a process may run on any of these cores; true where that cannot be read."""
    try:
        return not os.sched_getaffinity(pid).isdisjoint(cores)
    except OSError:
        return True


def _printable(name: str) -> str:
    # A process chooses its own name: it may contain line breaks and terminal escapes.
    shown = "".join(character if character.isprintable() else "?" for character in name).strip()
    return shown[:_LONGEST_NAME] or "?"
