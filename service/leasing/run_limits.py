"""How long a run may take: what the operator allows, and time for steps as slow as they were predicted or measured."""

from typing import NamedTuple

from shardtune.api_schemas.leases import ProfileTask, RestartTask, Task, TrialTask
from shardtune.api_schemas.trials import RunPurpose
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
    if run.trial is None or isinstance(task, ProfileTask):
        return LeaseLimits(settings.run_deadline_s, settings.no_progress_s)
    if isinstance(task, TrialTask):
        steps = task.plan.parity_steps + task.plan.max_warmup_steps + task.plan.min_windows
    else:
        steps = task.plan.fewest_steps + 2 * task.plan.steps_after
    # The prediction comes with the trial; what its search run measured is a statement more.
    slow_s = _SLOWER * (_predicted_s(run.trial, task) or _measured_s(run.trial) or 0.0)
    return LeaseLimits(settings.run_deadline_s + steps * slow_s, settings.no_progress_s + slow_s)


def _measured_s(trial: TrialRow) -> float | None:
    """A step of the trial's search run."""
    measured = next((run.measurement for run in trial.runs if run.purpose == RunPurpose.SEARCH), None)
    return None if measured is None else measured.step_time_s


def _predicted_s(trial: TrialRow, task: TrialTask | RestartTask) -> float | None:
    """A step as it was predicted; None where nobody knows."""
    if trial.prediction is None or trial.prediction.tokens_per_s_per_gpu is None:
        return None
    return task.workload.tokens_per_step / trial.prediction.tokens_per_s_per_gpu / task.cluster.world_size
