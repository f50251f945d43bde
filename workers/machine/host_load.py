"""Load on the host during a run: CPU time of other programs and their names, free memory, throttling by the control
group's CPU limit.

Only a program's short name leaves the machine: command lines may contain secrets.
"""

import os
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import psutil

from shardtune.api_schemas.base import GIB
from shardtune.api_schemas.machines.conditions import MOST_PROGRAMS, OWN_PROCESSES, Conditions, ProgramLoad
from shardtune.workers.clock import now_s
from shardtune.workers.machine.host_facts import host_memory_gib
from shardtune.workers.machine.oom_counter import cgroups

_ROOT = Path("/sys/fs/cgroup")
_LEAST_CORES = 0.05
"""Number of busy cores. A program that keeps fewer busy is not named as a cause of the host's load."""
_LONGEST_NAME = 64

_Process = tuple[int, float]
"""Process id and start time. Together they identify a process, although the system uses ids again."""


@dataclass(frozen=True)
class HostCounters:
    """Counters of the host's load at one time."""

    at_s: float
    busy_s: float
    """CPU time in seconds of all processes since boot, on the cores that this process may run on."""
    memory_available_gib: float
    throttled_s: float | None
    """Seconds for which threads were stopped by the CPU limit of their control group; None if the kernel does not count
    them."""

    @classmethod
    def now(cls) -> "HostCounters":
        """Read the host's load counters now."""
        return cls(now_s(), busy_on(os.sched_getaffinity(0)), available_gib(), throttled_s())

    def until(self, later: "HostCounters", ranks_cpu_s: Iterable[float | None]) -> Conditions:
        """Conditions on the host, such as load, between this snapshot of its counters and the later one. `ranks_cpu_s`:
        CPU time that each rank used in between."""
        rank_times = list(ranks_cpu_s)
        foreign = None
        if rank_times and None not in rank_times:
            spent_s = later.busy_s - self.busy_s - sum(seconds for seconds in rank_times if seconds is not None)
            foreign = round(max(0.0, spent_s) / max(later.at_s - self.at_s, 1e-9), 2)
        throttled = None
        if self.throttled_s is not None and later.throttled_s is not None:
            throttled = round(later.throttled_s - self.throttled_s, 3)
        return Conditions(
            foreign_cpu_cores=foreign,
            memory_available_gib=round(self.memory_available_gib, 2),
            cpu_throttled_s=throttled,
        )


def busy_on(cores: Collection[int]) -> float:
    """CPU time in seconds that all processes have used since boot on the given cores. If /proc does not list all of
    these cores, it is that of the whole machine."""
    each = psutil.cpu_times(percpu=True)
    counted = [each[core] for core in cores] if max(cores) < len(each) else each
    # Named parts, not a sum of all: `guest` is counted in `user` as well.
    parts = ("user", "nice", "system", "irq", "softirq")
    return float(sum(getattr(times, part, 0.0) for times in counted for part in parts))


def available_gib() -> float:
    """Memory in GiB that is available without swapping: that of the machine, or what the limit of the control group
    leaves, if that is less."""
    free = psutil.virtual_memory().available / GIB
    used = _cgroup_value("memory.current", "memory", "memory.usage_in_bytes")
    return free if used is None else min(free, max(0.0, host_memory_gib() - used / GIB))


def throttled_s(root: Path = _ROOT, proc: Path = Path("/proc")) -> float | None:
    """Seconds for which threads were stopped by the CPU limit of their control group; None if the kernel does not count
    them."""
    for controllers, group in cgroups(proc):
        names = controllers.split(",")
        base = root if controllers == "" else root / "cpu" if "cpu" in names else None
        for folder in () if base is None else (base / group, base):
            try:
                pairs = dict(line.split() for line in (folder / "cpu.stat").read_text().splitlines())
            except (OSError, ValueError):
                continue
            if "throttled_usec" in pairs:
                return int(pairs["throttled_usec"]) / 1e6
            if "throttled_time" in pairs:
                return int(pairs["throttled_time"]) / 1e9
    return None


def _cgroup_value(v2_name: str, controller: str, v1_name: str) -> float | None:
    for controllers, group in cgroups():
        if controllers == "":
            path = _ROOT / group / v2_name
        elif controller in controllers.split(","):
            path = _ROOT / controller / group / v1_name
        else:
            continue
        try:
            return float(path.read_text())
        except (OSError, ValueError):
            continue
    return None


@dataclass(frozen=True)
class ProcessTimes:
    """CPU time of each visible process at one time."""

    at_s: float
    by_process: Mapping[_Process, tuple[str, float]]
    """Name of each process, and the CPU seconds that it has used since its start, without those of its child
    processes."""

    @classmethod
    def now(cls) -> "ProcessTimes":
        """Read the CPU times of all visible processes now."""
        times: dict[_Process, tuple[str, float]] = {}
        processes = list(psutil.process_iter(["name", "cpu_times", "create_time", "ppid"]))
        own = own_processes({process.pid: process.info["ppid"] for process in processes})
        for process in processes:
            values = process.info
            # None where the process ended meanwhile or is not ours to read.
            if values["cpu_times"] is not None and values["create_time"] is not None:
                spent_s = values["cpu_times"].user + values["cpu_times"].system
                name = OWN_PROCESSES if process.pid in own else _printable(values["name"] or "")
                times[process.pid, values["create_time"]] = (name, spent_s)
        return cls(now_s(), times)

    def until(self, later: "ProcessTimes", cores: Collection[int]) -> tuple[ProgramLoad, ...]:
        """Programs that used the given cores between this time and the time of `later`, busiest first. Processes that
        ended before `later`, such as a run's ranks, are left out."""
        elapsed_s = max(later.at_s - self.at_s, 1e-9)
        totals: dict[str, float] = defaultdict(float)
        for process, (name, spent_s) in later.by_process.items():
            used = (spent_s - self.by_process.get(process, ("", 0.0))[1]) / elapsed_s
            if used >= _LEAST_CORES and _may_use(process[0], cores):
                totals[name] += used
        busiest = sorted(totals.items(), key=lambda item: (-item[1], item[0]))[:MOST_PROGRAMS]
        return tuple(ProgramLoad(name=name, cores=round(used, 2)) for name, used in busiest)


def own_processes(parents: Mapping[int, int | None]) -> set[int]:
    """Return the pids of this worker and of the services that its parent started, with the processes of these services.
    `parents`: pid of the parent of each visible process."""
    worker = os.getpid()
    beside = [pid for pid, parent in parents.items() if parent is not None and parent == parents.get(worker)]
    own = {worker}
    newest = {pid for pid in beside if pid != worker and _is_service(pid)}
    while newest:
        own |= newest
        newest = {pid for pid, parent in parents.items() if parent in newest} - own
    return own


def _is_service(pid: int) -> bool:
    """Whether a process is a service of Shardtune by its command line, which does not leave this function."""
    try:
        command = psutil.Process(pid).cmdline()
    except psutil.Error:
        return False
    return any(Path(program).name == "shardtune" and verb == "serve" for program, verb in pairwise(command))


def _may_use(pid: int, cores: Collection[int]) -> bool:
    """Whether a process may run on any of these cores; true if its CPU affinity cannot be read."""
    try:
        return not os.sched_getaffinity(pid).isdisjoint(cores)
    except OSError:
        return True


def _printable(name: str) -> str:
    # A process chooses its own name: it may contain line breaks and terminal escapes.
    shown = "".join(character if character.isprintable() else "?" for character in name).strip()
    return shown[:_LONGEST_NAME] or "?"
