"""See the ranks of a task through: one launch, or for a restart check two over one folder, with nothing alive in between."""

from collections.abc import Callable
from dataclasses import replace

from shardtune.api_schemas.leases import RestartTask, Task
from shardtune.workers.agent.collect import first_failure
from shardtune.workers.agent.supervise import Ended, RunLimits, supervise
from shardtune.workers.clock import now_s
from shardtune.workers.launchers.base import Launcher
from shardtune.workers.trial_dir import TrialDir


def run_to_end(
    launcher: Launcher,
    task: Task,
    directory: TrialDir,
    ranks: int,
    limits: RunLimits,
    interrupted: Callable[[], str | None],
) -> Ended:
    """How the last launch of the task ended, with the time of all of them.

    Raises:
        LaunchFailed: ranks could not be started.
        RanksAlive: ranks survived SIGKILL.
    """
    if not isinstance(task, RestartTask):
        return supervise(launcher, directory, ranks, limits, interrupted)
    try:
        return _twice(launcher, directory, ranks, limits, interrupted)
    finally:
        directory.remove_checkpoint()


def _twice(
    launcher: Launcher, directory: TrialDir, ranks: int, limits: RunLimits, interrupted: Callable[[], str | None]
) -> Ended:
    first = supervise(launcher, directory, ranks, limits, interrupted)
    if first.cause is not None or first_failure(directory, first) is not None:
        return first
    directory.begin_resume_phase()
    # A host that died after its ranks is replaced.
    launcher.prepare(lambda: interrupted() is not None)
    spent_s = now_s() - first.started_at_s
    rest = replace(limits, deadline_s=max(0.0, limits.deadline_s - spent_s))
    second = supervise(launcher, directory, ranks, rest, interrupted)
    return replace(
        second,
        started_at_s=first.started_at_s,
        elapsed_s=second.started_at_s - first.started_at_s + second.elapsed_s,
        oom_killed=first.oom_killed or second.oom_killed,
    )
