"""How long a run may take: what the operator allows, and time for steps as slow as they were predicted or measured."""

from typing import NamedTuple

from shardtune.api_schemas.trials.leases import ModelSummaryTask, ResumeTask, Task, TraceTask, TrialTask
from shardtune.api_schemas.trials.trial import RunPurpose
from shardtune.db.tables.studies import RunRow, TrialRow
from shardtune.service.settings import Settings

_SLOWER = 3
"""Than predicted a step may be; beyond, the worker follows the steps that it sees."""


class LeaseLimits(NamedTuple):
    """Seconds of a run, from its start, and without any progress."""

    deadline_s: float
    no_progress_s: float


def of(settings: Settings, run: RunRow, task: Task) -> LeaseLimits:
    """The limits of a run of this task."""
    if run.trial is None or isinstance(task, ModelSummaryTask):
        return LeaseLimits(settings.run_deadline_s, settings.no_progress_s)
    # The prediction comes with the trial; what its search run measured is a statement more.
    slow_s = _SLOWER * (_predicted_s(run.trial, task) or _measured_s(run.trial) or 0.0)
    return LeaseLimits(settings.run_deadline_s + _steps(task) * slow_s, settings.no_progress_s + slow_s)


_STARTS_S = 60.0
"""What starting and ending a run may take where none of its trial has been seen."""
_SPARE = 1.5
"""Times as long as foreseen a run may take."""


def foreseen_s(run: RunRow, task: Task) -> float:
    """How long a run will hardly exceed: by its trial's search run, else by what was predicted of a step."""
    if run.trial is None or isinstance(task, ModelSummaryTask):
        return _STARTS_S
    seen = next((done.measurement for done in run.trial.runs if done.purpose == RunPurpose.SEARCH), None)
    if seen is not None and isinstance(task, TrialTask):
        return _SPARE * seen.elapsed_s
    step_s = _predicted_s(run.trial, task) or _measured_s(run.trial) or 0.0
    return _STARTS_S + _SPARE * _steps(task) * step_s


def _steps(task: TrialTask | ResumeTask | TraceTask) -> int:
    """The fewest that a task's plan asks for, after as much warm-up as it allows."""
    if isinstance(task, TraceTask):
        return task.warmup_steps + _SLOWER * task.steps
    if isinstance(task, TrialTask):
        return task.plan.parity_steps + task.plan.max_warmup_steps + task.plan.min_windows
    return task.plan.fewest_steps + 2 * task.plan.steps_after


def _measured_s(trial: TrialRow) -> float | None:
    """A step of the trial's search run."""
    measured = next((run.measurement for run in trial.runs if run.purpose == RunPurpose.SEARCH), None)
    return None if measured is None else measured.step_time_s


def _predicted_s(trial: TrialRow, task: TrialTask | ResumeTask | TraceTask) -> float | None:
    """A step as it was predicted; None where nobody knows."""
    if trial.prediction is None or trial.prediction.tokens_per_s_per_gpu is None:
        return None
    return task.workload.tokens_per_step / trial.prediction.tokens_per_s_per_gpu / task.cluster.world_size
