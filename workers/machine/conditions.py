"""Conditions on a host around a launch (load, GPU clocks and errors), and whether a run's result can be trusted under
them. Pids are those of that host."""

import contextlib
import os
import platform
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

from shardtune.api_schemas.machines.conditions import Conditions, NodeConditions
from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.training.models import ModelSummary
from shardtune.api_schemas.trials.diagnosis import ProfilerRecording
from shardtune.api_schemas.trials.failures import Failure, FailureKind
from shardtune.api_schemas.trials.leases import ModelSummaryTask, TargetRehearsalTask, Task, TrialTask
from shardtune.api_schemas.trials.measurements import Measurement
from shardtune.api_schemas.trials.rank_reports import RankReport
from shardtune.api_schemas.trials.rehearsals import RehearsalReport
from shardtune.api_schemas.trials.resume_check import ResumeMeasurement
from shardtune.workers.clock import now_s
from shardtune.workers.launch import Launch
from shardtune.workers.machine import device_health, plausibility
from shardtune.workers.machine.device_health import Fault, GpuObservation
from shardtune.workers.machine.device_watch import DeviceWatch
from shardtune.workers.machine.host_load import HostCounters, ProcessTimes
from shardtune.workers.machine.oom_counter import oom_kills
from shardtune.workers.trial_dir import TrialDir

_STRAGGLER = 1.2
"""Ratio above which a rank's GPU counts as a straggler: the rank's time divided by the median time of all ranks. All
ranks time the same calculation, on equal GPUs and while no training runs."""

_NVIDIA_MAJOR = 195
"""Major number of the device files of NVIDIA's GPUs (the kernel's devices.txt). A process is a client of the driver for as
long as it has one of them open."""

Result = Measurement | ModelSummary | ResumeMeasurement | ProfilerRecording | RehearsalReport | Failure


class HostObserver:
    """Observer that reads the host's counters (such as CPU use of other programs) before the ranks start and after they
    have ended."""

    def __init__(self, watch: DeviceWatch | None, host: str | None = None) -> None:
        """Prepare the observer. `watch` observes the GPUs (None for CPU ranks); `host` defaults to the machine's name."""
        self._watch = watch
        self._host = (host or platform.node())[:200]
        self._before, self._kills = HostCounters.now(), oom_kills()
        self._processes: ProcessTimes | None = None

    def require_fit(self, give_up: Callable[[], bool]) -> None:
        """Wait until the GPUs are healthy and free.

        Raises:
            DevicesUnfit: a GPU is broken, or is not free in time.
        """
        if self._watch is not None:
            self._watch.require_fit(give_up)

    def begin(self) -> None:
        """Read the host's counters just before the ranks start."""
        # First: on a host with thousands of processes this takes a tenth of a second, which is no load of the run.
        self._processes = ProcessTimes.now()
        self._before, self._kills = HostCounters.now(), oom_kills()

    def conditions(self, directory: Path, launch: Launch) -> Conditions:
        """Conditions on the host (such as load and throttling) since `begin` was called. Call this once the ranks have
        ended and their reports are in the trial directory."""
        after = HostCounters.now()
        ranks = range(launch.first_rank, launch.first_rank + launch.ranks)
        reports = [TrialDir(directory).report(rank) for rank in ranks]
        looks = self._looks(after.at_s, reports)
        kills = oom_kills() - self._kills
        conditions = observe(self._before, after, looks, reports, host=self._host, ranks=ranks, kills=kills)
        if self._processes is None or not conditions.foreign_cpu_cores:
            return conditions
        programs = self._processes.until(ProcessTimes.now(), os.sched_getaffinity(0))
        return conditions.model_copy(update={"foreign_programs": programs})

    def _looks(self, ended_s: float, reports: Sequence[RankReport | None]) -> list[GpuObservation]:
        """Observations of the GPUs in the run, which has ended at `ended_s`; after a failure with the next one, because a
        rank dies of a driver's error sooner than the watch tells of it."""
        if self._watch is None:
            return []
        if all(report is not None and report.status == "complete" for report in reports):
            return self._watch.between(self._before.at_s, ended_s)
        self._watch.await_look(ended_s)
        return self._watch.between(self._before.at_s, now_s())


def observe(
    before: HostCounters,
    after: HostCounters,
    looks: Sequence[GpuObservation],
    reports: Sequence[RankReport | None],
    host: str,
    ranks: range,
    kills: int,
) -> Conditions:
    """Conditions on this host (such as load, throttling and GPU faults) during a launch whose ranks have ended."""
    load = before.until(after, [report.cpu_s if report else None for report in reports])
    pids = {process.pid for look in looks for device in look.devices for process in device.processes or ()}
    # All ranks have ended, so a process that still lives was none of them.
    devices = device_health.summarize_devices(looks, {pid for pid in pids if may_use_gpus(pid)})
    node = NodeConditions(
        host=host,
        first_rank=ranks.start,
        ranks=len(ranks),
        foreign_cpu_cores=load.foreign_cpu_cores,
        memory_available_gib=load.memory_available_gib,
        cpu_throttled_s=load.cpu_throttled_s,
        oom_kills=max(0, kills),
    )
    return load.model_copy(
        update={
            "nodes": (node,),
            "devices": tuple(device.model_copy(update={"host": host}) for device in devices),
            "rank_pace_s": tuple(report.pace_s for report in reports if report and report.pace_s is not None),
        }
    )


def may_use_gpus(pid: int) -> bool:
    """Whether a process lives and may have a GPU open. True if it cannot be inspected, such as another user's process."""
    if not psutil.pid_exists(pid):
        return False
    # Drivers before 535.113 report the host's pids in a container, too, where they are numbers of other processes.
    try:
        descriptors = list(os.scandir(f"/proc/{pid}/fd"))
    except OSError:
        return True
    for descriptor in descriptors:
        with contextlib.suppress(OSError):  # closed meanwhile
            # By number: the file may have another path in another container. It is 0 for what is no device.
            if os.major(descriptor.stat().st_rdev) == _NVIDIA_MAJOR:
                return True
    return False


def with_conditions(task: Task, result: Result, conditions: Conditions, peak_flops: float | None) -> Result:
    """Add the hosts' conditions (such as load and throttling) to a run's result.

    A fault of the device replaces the result by a failure, and an implausible measurement is marked as suspect.
    """
    if isinstance(result, ProfilerRecording):
        cores = len(os.sched_getaffinity(0))
        return result.model_copy(update={"foreign_cpu_cores": conditions.foreign_cpu_cores, "host_cpu_cores": cores})
    # Neither measures anything.
    if isinstance(task, ModelSummaryTask | TargetRehearsalTask) or isinstance(result, ModelSummary | RehearsalReport):
        return result
    # A device's own fault explains a slow rank, so it comes before the straggler.
    fault = device_health.find_fault(conditions.devices) or straggler(task.cluster, conditions)
    if fault is not None and (fault.excuses_failures or isinstance(result, Measurement)):
        return Failure(kind=FailureKind.DEVICE, message=fault.message, conditions=conditions)
    if isinstance(result, Failure):
        return result.model_copy(update={"conditions": conditions})
    if not isinstance(task, TrialTask) or not isinstance(result, Measurement):
        return result
    suspect = plausibility.implausibility(task, result, peak_flops)
    return result.model_copy(update={"conditions": conditions, "suspect": suspect})


def straggler(cluster: Cluster, conditions: Conditions) -> Fault | None:
    """Fault of a GPU that is much slower than the other ranks' GPUs, or None. It is always None for CPU ranks: they
    share cores, so that one rank's time proves nothing."""
    pace_s = conditions.rank_pace_s
    if cluster.device == "cpu" or len(pace_s) < 2:
        return None
    ratio = max(pace_s) / statistics.median_low(pace_s)
    if ratio <= _STRAGGLER:
        return None
    rank = pace_s.index(max(pace_s))
    host = conditions.host_of(rank)
    location = f" on {host}" if host else ""
    return Fault(
        f"rank {rank}{location} is a straggler: its GPU took {ratio:.2f} times as long as the median one", False
    )
