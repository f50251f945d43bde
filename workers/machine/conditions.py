"""What the worker saw around a run, and whether the run's result stands in its light."""

import statistics
from collections.abc import Sequence

import psutil

from shardtune.api_schemas.conditions import Conditions
from shardtune.api_schemas.failures import Failure, FailureKind
from shardtune.api_schemas.hardware import Cluster
from shardtune.api_schemas.leases import Task, TrialTask
from shardtune.api_schemas.measurements import Measurement, RankReport
from shardtune.api_schemas.models import ModelProfile
from shardtune.api_schemas.restart import RestartMeasurement
from shardtune.workers.machine import device_health, plausibility
from shardtune.workers.machine.device_health import Fault, Look
from shardtune.workers.machine.host_load import HostLook

_STRAGGLER = 1.2
"""Slowest over median rank, at the same calculation on equal GPUs that do nothing else."""

Result = Measurement | ModelProfile | RestartMeasurement | Failure


def observe(
    before: HostLook, after: HostLook, looks: Sequence[Look], reports: Sequence[RankReport | None]
) -> Conditions:
    """Everything known about the machine during a run whose ranks are gone."""
    host = before.until(after, [report.cpu_s if report else None for report in reports])
    pids = {process.pid for look in looks for device in look.devices for process in device.processes or ()}
    return host.model_copy(
        update={
            # None of ours is alive any more: who still is was a stranger.
            "devices": device_health.seen(looks, {pid for pid in pids if psutil.pid_exists(pid)}),
            "rank_pace_s": tuple(report.pace_s for report in reports if report and report.pace_s is not None),
        }
    )


def judged(task: Task, result: Result, conditions: Conditions, peak_flops: float | None) -> Result:
    """The result with its circumstances; a failure of the device where these take it away, marked where it cannot be true."""
    if task.kind == "profile" or isinstance(result, ModelProfile):
        return result
    fault = device_health.fault(conditions.devices) or straggler(task.cluster, conditions.rank_pace_s)
    if fault is not None and (fault.excuses_failures or isinstance(result, Measurement)):
        return Failure(kind=FailureKind.DEVICE, message=fault.message, conditions=conditions)
    if isinstance(result, Failure):
        return result.model_copy(update={"conditions": conditions})
    if not isinstance(task, TrialTask) or not isinstance(result, Measurement):
        return result
    suspect = plausibility.doubt(task, result, peak_flops)
    return result.model_copy(update={"conditions": conditions, "suspect": suspect})


def straggler(cluster: Cluster, pace_s: Sequence[float]) -> Fault | None:
    """A GPU much slower than its peers; CPU ranks share their cores with each other, which says nothing about one of them."""
    if cluster.device == "cpu" or len(pace_s) < 2:
        return None
    ratio = max(pace_s) / statistics.median_low(pace_s)
    if ratio <= _STRAGGLER:
        return None
    rank = pace_s.index(max(pace_s))
    return Fault(f"rank {rank} is a straggler: its GPU took {ratio:.2f} times as long as the median one", False)
