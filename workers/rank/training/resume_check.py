"""One rank of a resume check. In the first launch: train, save, go on. In the second: load and go on from there.

The agent launches twice over one trial directory, so whoever loads is a new process. Which launch it is, the order says: a
file that one rank writes need not be there yet for a rank of another host, and then half of them would load.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from shardtune.api_schemas.trials.leases import ResumeTask
from shardtune.api_schemas.trials.measurements import RankReport
from shardtune.api_schemas.trials.resume_check import ResumePlan
from shardtune.workers.launch import CHECKPOINT, RESUMES
from shardtune.workers.rank.strategies.base import Setting, Trainer
from shardtune.workers.rank.training.checkpoint_folder import CheckpointFolder
from shardtune.workers.rank.training.loop import Loop, Steps, run_all
from shardtune.workers.rank.training.step import Step
from shardtune.workers.rank.trial_dir import ProgressFile
from shardtune.workers.rank.versions import library_versions

FOLDER = "checkpoint"
"""In the trial directory; the agent removes it when the attempt is over."""


@dataclass(frozen=True)
class Built:
    """What a rank trains with."""

    setting: Setting
    step: Step
    trainer: Trainer
    parameters: int
    """Of the whole model."""


def run(task: ResumeTask, built: Built, folder: Path, progress: ProgressFile) -> RankReport:
    """The first life of the task's ranks, or their second.

    Raises:
        SetupError: the disk has no room for the checkpoint.
        NumericsError: loss or norm is not finite.
    """
    place = built.setting.place
    checkpoint = CheckpointFolder(Path(os.environ.get(CHECKPOINT, folder / FOLDER)), place, progress)
    loop = ResumeLoop(built.trainer.parameter_checksum, built.setting, built.step, progress)
    if RESUMES in os.environ:
        part = checkpoint.load(built.trainer)
        loop.go_on_at(part.step)
    else:
        run_all(loop.train(task.plan), built.trainer)
        part = checkpoint.save(built.trainer, len(loop.outcome.losses), built.parameters)
    run_all(loop.record(task.plan.steps_after), built.trainer)
    return RankReport(
        rank=place.rank,
        status="complete",
        memory=place.accelerator.counted(),
        trajectory=tuple(loop.outcome.trajectory),
        losses=tuple(loop.outcome.losses),
        checkpoint=part,
        versions=library_versions(),
    )


class ResumeLoop(Loop):
    """Asks for the steps of a restart plan."""

    def go_on_at(self, step: int) -> None:
        """The position of the data."""
        self._step = self._told_step = step

    def train(self, plan: ResumePlan) -> Steps[None]:
        """The run before the checkpoint."""
        spent_s, done = 0.0, 0
        self._planned = plan.fewest_steps + plan.steps_after
        while done < plan.fewest_steps or (done < plan.most_steps and spent_s < plan.max_train_s):
            losses, seconds = yield from self._timed([self._batches(self._step)])
            spent_s += self._slowest(seconds)
            done += 1
            self._note_losses(losses)
            self._tell("training")

    def record(self, count: int) -> Steps[None]:
        """Steps with all their figures."""
        for _ in range(count):
            yield from self._record_step()
            self._tell("training")
