"""Time limits of runs: the operator's limits, plus time for the run's steps, from the predicted or measured step
time.
"""

from datetime import datetime, timedelta
from typing import NamedTuple

from shardtune.api_schemas.trials.leases import (
    ModelSummaryTask,
    ResumeTask,
    TargetRehearsalTask,
    Task,
    TraceTask,
    TrialTask,
)
from shardtune.api_schemas.trials.resume_check import MOST_BYTES_PER_PARAMETER
from shardtune.api_schemas.trials.trial import RunPurpose
from shardtune.db.tables.trials import RunRow, TrialRow
from shardtune.service.settings import Settings

_SLOWDOWN = 3
"""Factor by which a step may be slower than predicted without exceeding the run's time limit. If steps are even
slower, the worker extends the limit according to the measured step time.
"""


_OVERDUE_FACTOR = 2
"""Factor by which an attempt at a run may outlast the time limit that its worker applies, before the service ends the
attempt. It leaves time to wait for devices before the launch, and to send traces and the report after the end.
"""
_MOST_EXTENSION = 10
"""Maximum factor by which a run's deadline is extended because the run makes progress. The service and the worker
(`workers.agent.supervise`) use the same factor."""


class LeaseLimits(NamedTuple):
    """Time limits of a run in seconds: for the whole run since its start, and for a time in which it makes no
    progress.
    """

    deadline_s: float
    no_progress_s: float


def deadline_at(started_at: datetime, deadline_s: float) -> datetime:
    """Time at which the service ends an attempt at a run. It is later than the limit of `deadline_s` seconds that the
    worker applies itself.
    """
    return started_at + timedelta(seconds=_OVERDUE_FACTOR * deadline_s)


def extended_deadline(run: RunRow, deadline_s: float, waited_s: float, now: datetime) -> datetime | None:
    """Later deadline of a run that has passed its deadline but progressed since the last extension. None if it has
    not progressed, or has used up the largest extension.

    `waited_s`: seconds for which the current attempt has waited for a quiet machine. Its deadline does not run
    meanwhile.
    """
    progress, started_at = run.progress, run.started_at
    # The worker repeats the last progress with each heartbeat, also while its agent hangs: only a change counts.
    if started_at is None or progress is None or progress == run.extended_at_progress:
        return None
    steps_s = _SLOWDOWN * (progress.step_s or 0.0) * (progress.steps_left or 0)
    latest = deadline_at(started_at, _MOST_EXTENSION * deadline_s) + timedelta(seconds=waited_s)
    extended = min(latest, now + timedelta(seconds=min(deadline_s + steps_s, _MOST_EXTENSION * deadline_s)))
    return extended if extended > now else None


_SLOW_DISK = 100e6
"""Bytes per second of the slowest disk on which the checkpoint of a resume check can be saved and loaded in time:
shared folders and small cloud disks reach 125 MB/s."""
_USUAL_DISK = 500e6


def _checkpoint_s(task: Task, parameters: int, bytes_per_s: float) -> float:
    """Seconds needed to save and load the checkpoint of a resume check; 0 for a task of another kind."""
    return 2 * MOST_BYTES_PER_PARAMETER * parameters / bytes_per_s if isinstance(task, ResumeTask) else 0.0


def _sustained_s(run: RunRow, task: Task) -> float:
    """Seconds for which a sustained run times steps beyond the fewest of its plan; 0 for a run of another purpose."""
    if not isinstance(task, TrialTask) or run.purpose != RunPurpose.SUSTAINED:
        return 0.0
    return task.plan.max_measure_s


def of(settings: Settings, run: RunRow, task: Task, parameters: int = 0) -> LeaseLimits:
    """Time limits of a run that executes this task. `parameters` is the number of the model's parameters."""
    if run.trial is None or isinstance(task, ModelSummaryTask):
        return LeaseLimits(settings.run_deadline_s, settings.no_progress_s)
    if isinstance(task, TargetRehearsalTask):
        return LeaseLimits(settings.run_deadline_s + len(task.parts) * task.part_limit_s, settings.no_progress_s)
    # The prediction is loaded with the trial; reading the search run's measurement would take another SQL statement.
    slow_s = _SLOWDOWN * (_predicted_step_s(run.trial, task) or measured_step_s(run.trial) or 0.0)
    needed_s = _step_count(task) * slow_s + _checkpoint_s(task, parameters, _SLOW_DISK) + _sustained_s(run, task)
    return LeaseLimits(settings.run_deadline_s + needed_s, settings.no_progress_s + slow_s)


def of_trace(settings: Settings, task: TraceTask, step_s: float | None) -> LeaseLimits:
    """Time limits of a run that records a trial's traces without a lease: those that the service gives such a run.
    `step_s`: predicted or measured step time of the trial in seconds; None if it is unknown.
    """
    slow_s = _SLOWDOWN * (step_s or 0.0)
    return LeaseLimits(settings.run_deadline_s + _step_count(task) * slow_s, settings.no_progress_s + slow_s)


_START_AND_END_S = 60.0
"""Seconds that starting and ending a run is assumed to take if its trial has not run before."""
_REHEARSED_PART_S = 60.0
"""Expected seconds of one process of a rehearsal, which runs the first steps at the target's number of ranks without
timing them. For layouts of a 70B model, 8 to 62 s of one core were measured.
"""
_SPARE_FACTOR = 1.5
"""Factor by which the expected duration of a run is increased, to be on the safe side."""


def foreseen_s(run: RunRow, task: Task, parameters: int = 0) -> float:
    """Upper estimate of a run's duration in seconds. It is based on the search run of the same trial, if there is
    one, else on the predicted step time. `parameters`: number of the model's parameters.
    """
    if run.trial is None or isinstance(task, ModelSummaryTask):
        return _START_AND_END_S
    if isinstance(task, TargetRehearsalTask):
        return _START_AND_END_S + len(task.parts) * _REHEARSED_PART_S
    # A search run of the same trial covers start, warm-up and windows, so its whole duration is the best estimate.
    searched = next((earlier.measurement for earlier in run.trial.runs if earlier.purpose == RunPurpose.SEARCH), None)
    # But not of a run that times whole steps, where the search's were short, nor of one with many first steps.
    if (
        searched is not None
        and isinstance(task, TrialTask)
        and not task.plan.loss_steps
        and searched.is_extended == task.plan.is_extended
    ):
        return _SPARE_FACTOR * searched.elapsed_s + _sustained_s(run, task)
    step_time_s = _predicted_step_s(run.trial, task) or measured_step_s(run.trial) or 0.0
    steps_s = _SPARE_FACTOR * _step_count(task) * step_time_s
    return _START_AND_END_S + steps_s + _checkpoint_s(task, parameters, _USUAL_DISK) + _sustained_s(run, task)


def _step_count(task: TrialTask | ResumeTask | TraceTask) -> float:
    """Minimum number of steps of a task: the longest warm-up that its measurement plan allows, and the fewest timed
    steps that the plan requires.
    """
    if isinstance(task, TraceTask):
        return task.warmup_steps + _SLOWDOWN * task.steps
    if isinstance(task, TrialTask):
        whole = task.config.accumulation(task.workload.global_batch, task.cluster.world_size)
        timed = (task.plan.max_warmup_steps + task.plan.min_windows) * task.workload.steps_per_cycle
        return task.plan.whole_steps(timed, whole)
    return task.plan.fewest_steps + 2 * task.plan.steps_after


def measured_step_s(trial: TrialRow) -> float | None:
    """Step time in seconds measured by the trial's search run; None if that run measured none."""
    measured = next((run.measurement for run in trial.runs if run.purpose == RunPurpose.SEARCH), None)
    return None if measured is None else measured.step_time_s


def _predicted_step_s(trial: TrialRow, task: TrialTask | ResumeTask | TraceTask) -> float | None:
    """Predicted step time of a trial in seconds; None if there is no prediction."""
    if trial.prediction is None or trial.prediction.tokens_per_s_per_gpu is None:
        return None
    return task.workload.tokens_per_step / trial.prediction.tokens_per_s_per_gpu / task.cluster.world_size
