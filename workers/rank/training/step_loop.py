"""Training steps of one rank: run, timed, recorded, their losses checked and their progress reported."""

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from typing import Any, Literal

import torch
import torch.distributed as dist

from shardtune.api_schemas.trials.leases import TrialTask
from shardtune.api_schemas.trials.measure_plan import MeasurePlan
from shardtune.api_schemas.trials.measurements import StepRecord
from shardtune.api_schemas.trials.progress import Progress
from shardtune.api_schemas.trials.short_steps import ShortSteps
from shardtune.workers.rank import mesh, trial_dir
from shardtune.workers.rank.classify import NumericsError
from shardtune.workers.rank.device import clock
from shardtune.workers.rank.process.garbage import StepwiseCollection
from shardtune.workers.rank.rank_context import RankContext
from shardtune.workers.rank.strategies.base import TrainingSetup
from shardtune.workers.rank.training.batches import MicroBatches
from shardtune.workers.rank.training.skipped_steps import SkippedSteps
from shardtune.workers.rank.training.step import Step
from shardtune.workers.rank.training.step_runs import LoopRecord, Steps

Checksum = Callable[[], tuple[float | None, float | None]]
"""Function that returns a parameter checksum (see `Trainer.parameter_checksum`). Its values are None if the weights
cannot be read."""


class StepLoop:
    """Loop over training steps. Subclasses choose the steps. Decisions use only numbers that are equal on all ranks, so
    that all ranks decide alike."""

    def __init__(
        self,
        checksum: Checksum,
        setting: TrainingSetup,
        step: Step | None,
        progress: trial_dir.ProgressFile,
    ) -> None:
        """Prepare the loop at step 0; `step` makes the batches, and is None if a user's script makes its own."""
        self._checksum = checksum
        self._setting = setting
        self._micro_batches = MicroBatches(setting, step, self._while_loading)
        self._progress = progress
        self._step = 0
        self.skipped = SkippedSteps(self._place, scales_loss=self._task.workload.precision.scales_loss)
        self._garbage = StepwiseCollection(self._task.config.gc_every)
        self._garbage.begin()
        # Steps of samples of several lengths differ, so a cycle of them is timed as one.
        self._cycle = self._task.workload.steps_per_cycle
        self._steps_per_time = self._cycle if self._short is None or self._short.accumulations is None else 2
        timed = (self._plan.max_warmup_steps + self._plan.min_windows) * self._steps_per_time
        self._planned = max(self._plan.parity_steps, self._plan.loss_steps) + timed
        self._reported_step, self._reported_at_s = 0, time.monotonic()
        self._step_s: float | None = None
        self.outcome = LoopRecord()

    def begin_clock(self) -> None:
        """Count the seconds of steps from now on, not from the creation of the loop: a user's script loads its data
        meanwhile. A slow step lets a run that hangs later live for three times as long."""
        self._reported_at_s = time.monotonic()

    def _train_step(self, batches: list[Any]) -> Steps[float]:
        """Train a step until it updates the weights, and keep its loss; returns the seconds of all its tries.

        Raises:
            NumericsError: the loss is not finite, or its gradients overflow at any scale.
        """
        begin = clock(self._place.accelerator)
        loss, _ = yield from self.skipped.trained(batches, self._step)
        self._end_step()
        seconds = clock(self._place.accelerator) - begin
        self._note_losses(mesh.mean(loss.reshape(1), self._place))
        return seconds

    def _end_step(self) -> None:
        self._step += 1
        self._garbage.end_step()

    @contextlib.contextmanager
    def _while_loading(self) -> Iterator[None]:
        """Context in which the first batches are made, for which an entry point may load and tokenize its data. That is
        progress, also of another rank than 0, for which rank 0 waits in its first step; and no time of a step."""
        with self._progress.refreshed_by_work(Progress(phase="building", step=self._step), lambda: True):
            yield
        # From here on, a busy processor is no progress: a hang may keep it busy.
        self._progress.write(Progress(phase="warming_up", step=self._step))
        self.begin_clock()

    def _while_compiling(self) -> contextlib.AbstractContextManager[None]:
        """Context in which the progress file is written regularly while a first step compiles, because no step ends
        during that time. Compilation is repeated for new shapes."""
        if not self._task.config.compiles:
            return contextlib.nullcontext()
        return self._progress.refreshed(Progress(phase="warming_up", step=self._step))

    def _record_step(self, batches: list[Any]) -> Steps[None]:
        """Run a step and record its loss, gradient norm and checksum."""
        step = self._step
        loss, norm = yield from self.skipped.trained(batches, step)
        self._end_step()
        (mean_loss,) = mesh.mean(loss.reshape(1), self._place)
        self._note_losses([mean_loss])
        grad_norm = None if norm is None else float(norm)
        self._require_finite(grad_norm, "gradient norm", step)
        total, squares = self._checksum()
        self._require_finite(squares, "sum of squared parameters", step)
        self.outcome.trajectory.append(
            StepRecord(
                step=step, loss=mean_loss, grad_norm=grad_norm, parameter_sum=total, parameter_square_sum=squares
            )
        )

    def _timed(
        self, steps: list[list[Any]], after_step: Callable[[], None] = lambda: None
    ) -> Steps[tuple[list[float], float]]:
        """Run steps back to back; returns mean losses and seconds. Losses are fetched after the clock has stopped. If
        the loss scale skipped a step, all steps are run again, because a skipped step takes less time: it lacks the
        update."""
        first_step = self._step
        while True:
            # The same samples again: a step's number says which samples it trains, also after a resume.
            self._step = first_step
            losses, norms, seconds = yield from self._run(steps, after_step)
            if not all(map(math.isfinite, losses)) or not self.skipped.spoils(norms):
                return losses, seconds

    def _run(
        self, steps: list[list[Any]], after_step: Callable[[], None]
    ) -> Steps[tuple[list[float], list[torch.Tensor | float | None], float]]:
        """Run steps back to back; returns mean losses, gradient norms and seconds."""
        # Ranks start together: otherwise the first would time its wait for the last one's previous bookkeeping.
        dist.barrier()
        begin = clock(self._place.accelerator)
        losses, norms = [], []
        for batches in steps:
            loss, norm = yield batches
            self._end_step()
            losses.append(loss)
            norms.append(norm)
            after_step()
        seconds = clock(self._place.accelerator) - begin
        return mesh.mean(torch.stack(losses), self._place), norms, seconds

    def _slowest(self, seconds: float) -> float:
        """Largest of all ranks' seconds: those of the slowest rank."""
        (slowest,) = mesh.largest([seconds], self._place)
        return slowest

    def _note_losses(self, losses: list[float]) -> None:
        for loss in losses:
            self._require_finite(loss, "loss", len(self.outcome.losses))
            self.outcome.losses.append(loss)

    def _require_finite(self, value: float | None, quantity: str, step: int) -> None:
        if value is not None and not math.isfinite(value):
            raise NumericsError(f"{quantity} is {value} at step {step}")

    def _report_progress(self, phase: Literal["warming_up", "measuring", "training"], throttle: bool = False) -> None:
        speed = None
        if self.outcome.window_step_times_s:
            tokens = self._task.workload.tokens_per_step * len(self.outcome.window_step_times_s)
            speed = tokens / sum(self.outcome.window_step_times_s) / self._place.world_size
        now_s, steps = time.monotonic(), self._step - self._reported_step
        if steps and not throttle:
            # Not within a window: the host runs ahead of the GPU there, and the step time would be too short.
            self._step_s = (now_s - self._reported_at_s) / steps
            self._reported_step, self._reported_at_s = self._step, now_s
        steps_left = max(0, self._planned - self._step)
        self._progress.write(
            Progress(
                phase=phase, step=self._step, tokens_per_s_per_gpu=speed, step_s=self._step_s, steps_left=steps_left
            ),
            throttle,
        )

    def _report_within_window(self) -> None:
        self._report_progress("measuring", throttle=True)

    @property
    def _task(self) -> TrialTask:
        return self._setting.task

    @property
    def _plan(self) -> MeasurePlan:
        return self._setting.task.plan

    @property
    def _short(self) -> ShortSteps | None:
        return self._plan.short_steps

    @property
    def _place(self) -> RankContext:
        return self._setting.context
