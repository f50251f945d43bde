"""Launches of a task's ranks: one launch, or for a resume check two over the same folder, with no process alive in
between."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from shardtune.api_schemas.access import private_folder
from shardtune.api_schemas.machines.conditions import Conditions
from shardtune.api_schemas.trials.leases import ResumeTask, Task
from shardtune.workers import leftovers
from shardtune.workers.agent.failures import first_failure
from shardtune.workers.agent.supervise import RanksEnd, RunLimits, supervise
from shardtune.workers.clock import now_s
from shardtune.workers.launch import Launch
from shardtune.workers.launchers.base import Launcher
from shardtune.workers.trial_dir import TrialDir


def run_to_end(
    launcher: Launcher,
    task: Task,
    directory: TrialDir,
    ranks: int,
    limits: RunLimits,
    interrupted: Callable[[], str | None],
    shared_dir: Path | None = None,
) -> RanksEnd:
    """Run all launches of a task. Returns the end of the last launch, with the time that all launches took together.

    Raises:
        ValueError: a resume check over several hosts has no `shared_dir` that all of them see, or it belongs to another
            user.
        LaunchFailed: ranks could not be started.
        RanksAlive: ranks survived SIGKILL.
    """
    if not isinstance(task, ResumeTask):
        return supervise(launcher, directory, Launch.of(ranks), limits, interrupted)
    checkpoint = (
        None if task.cluster.nodes == 1 else _require_shared(shared_dir, task.cluster.nodes) / directory.path.name
    )
    if checkpoint is not None:
        leftovers.remove_checkpoints(checkpoint.parent, checkpoint.name)
    try:
        return _run_both_phases(launcher, directory, _launch(ranks, checkpoint), limits, interrupted)
    finally:
        directory.remove_checkpoint()
        if checkpoint is not None:
            shutil.rmtree(checkpoint, ignore_errors=True)


def _require_shared(shared_dir: Path | None, nodes: int) -> Path:
    if shared_dir is None:
        raise ValueError(
            f"a resume check over {nodes} hosts saves where all of them can load; give the worker --shared-dir, a folder "
            "that every host sees"
        )
    # Ranks load what lies there: nobody else may have put it there.
    return private_folder.make(private_folder.of_this_user(shared_dir), "shared_dir")


def _launch(ranks: int, checkpoint: Path | None) -> Launch:
    return Launch.of(ranks, checkpoint=None if checkpoint is None else str(checkpoint))


def _run_both_phases(
    launcher: Launcher, directory: TrialDir, launch: Launch, limits: RunLimits, interrupted: Callable[[], str | None]
) -> RanksEnd:
    first = supervise(launcher, directory, launch, limits, interrupted)
    if first.cause is not None or first_failure(directory, first) is not None:
        return first
    directory.begin_resume_phase()
    # A fork server that died after its ranks is replaced.
    launcher.prepare(lambda: interrupted() is not None)
    spent_s = now_s() - first.started_at_s
    # Both launches share one deadline, that of the attempt.
    remaining = replace(limits, deadline_s=max(0.0, limits.deadline_s - spent_s))
    resumed = launch.model_copy(update={"resumes": True})
    second = supervise(launcher, directory, resumed, remaining, interrupted)
    return replace(
        second,
        started_at_s=first.started_at_s,
        elapsed_s=second.started_at_s - first.started_at_s + second.elapsed_s,
        conditions=Conditions.joined((first.conditions, second.conditions)),
    )
