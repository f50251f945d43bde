"""Resume check on one rank: the first launch trains, saves a checkpoint and continues; the second launch loads the
checkpoint and continues from there.

The agent launches twice over one trial directory, so that the ranks that load are new processes. The launch order says
which launch it is.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from shardtune.api_schemas.trials.leases import ResumeTask
from shardtune.api_schemas.trials.rank_reports import RankReport
from shardtune.api_schemas.trials.resume_check import ResumePlan
from shardtune.workers.launch import CHECKPOINT, RESUMES
from shardtune.workers.rank.strategies.base import Trainer, TrainingSetup
from shardtune.workers.rank.training.checkpoint_folder import CheckpointFolder
from shardtune.workers.rank.training.step import Step
from shardtune.workers.rank.training.step_loop import StepLoop
from shardtune.workers.rank.training.step_runs import Steps, run_steps
from shardtune.workers.rank.trial_dir import ProgressFile
from shardtune.workers.rank.versions import library_versions

FOLDER = "checkpoint"
"""Name of the folder, in the trial directory, for the checkpoint. The agent removes it when the attempt is over."""


@dataclass(frozen=True)
class RankTraining:
    """Model, steps and trainer of one rank, built and ready to train."""

    setting: TrainingSetup
    step: Step
    trainer: Trainer
    parameters: int
    """Number of parameters of the whole model that are saved in a checkpoint."""


def run(task: ResumeTask, built: RankTraining, folder: Path, progress: ProgressFile) -> RankReport:
    """Run one of the two launches of a resume check; the launch order says which.

    Raises:
        SetupError: the disk has no room for the checkpoint.
        NumericsError: loss or norm is not finite.
    """
    place = built.setting.context
    checkpoint = CheckpointFolder(Path(os.environ.get(CHECKPOINT, folder / FOLDER)), place, progress)
    loop = ResumeLoop(built.trainer.parameter_checksum, built.setting, built.step, progress)
    # Not decided by a file: what one rank writes need not be visible yet on another host, and half the ranks would
    # load.
    if RESUMES in os.environ:
        checkpoint_part = checkpoint.load(built.trainer)
        loop.continue_at(checkpoint_part.step)
    else:
        run_steps(loop.train(task.plan), built.trainer)
        checkpoint_part = checkpoint.save(built.trainer, len(loop.outcome.losses), built.parameters)
    run_steps(loop.record(task.plan.steps_after), built.trainer)
    return RankReport(
        rank=place.rank,
        status="complete",
        memory=place.accelerator.memory_peaks(),
        trajectory=tuple(loop.outcome.trajectory),
        losses=tuple(loop.outcome.losses),
        checkpoint=checkpoint_part,
        skipped_steps=loop.skipped.count,
        versions=library_versions(),
    )


class ResumeLoop(StepLoop):
    """Loop over the steps of a resume plan. If the study times short steps (with fewer micro batches), these steps are
    short, too: they are compared only with each other."""

    def continue_at(self, step: int) -> None:
        """Continue at the given step, so that the training data are the same as in an uninterrupted run."""
        self._step = self._reported_step = step

    def train(self, plan: ResumePlan) -> Steps[None]:
        """Yield the steps before the checkpoint. Their number is at least the plan's minimum; further steps follow
        until the plan's limit of time or steps is reached."""
        spent_s, step_count = 0.0, 0
        self._planned = plan.fewest_steps + plan.steps_after
        while step_count < plan.fewest_steps or (step_count < plan.most_steps and spent_s < plan.max_train_s):
            seconds = yield from self._train_step(self._micro_batches.of_recorded_step(self._step, self._short))
            spent_s += self._slowest(seconds)
            step_count += 1
            self._report_progress("training")

    def record(self, count: int) -> Steps[None]:
        """Yield `count` steps and record the figures of all of them."""
        for _ in range(count):
            yield from self._record_step(self._micro_batches.of_recorded_step(self._step, self._short))
            self._report_progress("training")
