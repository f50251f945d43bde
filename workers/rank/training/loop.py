"""Measuring loop of one rank: recorded first steps, warm-up, timed windows."""

import contextlib
import gc
import math
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeVar

import torch
import torch.distributed as dist

from shardtune.api_schemas.trials.leases import TrialTask
from shardtune.api_schemas.trials.measurements import MeasurePlan, Progress, StepRecord
from shardtune.workers.rank import mesh, trial_dir
from shardtune.workers.rank.classify import NumericsError, OverLimitError
from shardtune.workers.rank.device import clock
from shardtune.workers.rank.measure import throughput
from shardtune.workers.rank.measure.memory import MemoryMeter
from shardtune.workers.rank.model import data
from shardtune.workers.rank.process.garbage import StepwiseCollection
from shardtune.workers.rank.rank_context import RankContext
from shardtune.workers.rank.strategies.base import TrainingSetup
from shardtune.workers.rank.training.step import Step

PROFILED_STEPS = 2
"""Number of first steps in which memory is profiled: the optimizer creates its state in the first, and has all of it in
the second."""


StepResult = tuple[torch.Tensor, torch.Tensor | float | None]
"""Result of an optimizer step: this rank's mean loss and the gradient norm, both possibly still being computed on the
device."""
_Result = TypeVar("_Result")
Steps = Generator[list[Any], StepResult, _Result]
"""Generator that yields the micro batches of each step to run, and receives the step's result."""


class StepRunner(Protocol):
    """Protocol of the trainer methods that make up a step."""

    def micro_step(self, batch: Any, last: bool) -> torch.Tensor:
        """Run forward and backward of one micro batch, as `Trainer.micro_step` describes; returns the mean loss."""

    def optimizer_step(self) -> torch.Tensor | float:
        """Clip and update at the end of a step, as `Trainer.optimizer_step` describes; returns the gradient norm."""


def run_steps(steps: Steps[None], trainer: StepRunner) -> None:
    """Run every step whose micro batches the generator yields."""
    with contextlib.suppress(StopIteration):
        batches = next(steps)
        while True:
            batches = steps.send(_run_step(trainer, batches))


def _run_step(trainer: StepRunner, batches: list[Any]) -> StepResult:
    losses = [trainer.micro_step(batch, last=i == len(batches) - 1) for i, batch in enumerate(batches)]
    norm = trainer.optimizer_step()
    return torch.stack(losses).mean(), norm


@dataclass
class LoopRecord:
    """Figures that the measuring loop has recorded so far."""

    trajectory: list[StepRecord] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    """Mean loss over the global batch, of every step in order."""
    warmup_step_times_s: list[float] = field(default_factory=list)
    is_steady: bool = False
    """Whether the warm-up's last steps took the same time."""
    is_pruned: bool = False
    """Whether the trial was ended early as too slow to win; see `Measurement.is_pruned`."""
    window_step_times_s: list[float] = field(default_factory=list)
    """Seconds per step of the slowest rank, one entry per timed window."""
    own_step_times_s: list[float] = field(default_factory=list)
    """Seconds per step of this rank, one entry per timed window."""
    data_wait_s: float | None = None
    """Seconds that the script waited for data; see `RankReport.data_wait_s`."""


Checksum = Callable[[], tuple[float | None, float | None]]
"""Function that returns a parameter checksum (see `Trainer.parameter_checksum`), with None values where the weights
cannot be read."""


class Loop:
    """Measuring loop that yields the steps of a task's plan and times them. Every decision is based on numbers that all
    ranks share."""

    def __init__(
        self,
        checksum: Checksum,
        setting: TrainingSetup,
        step: Step | None,
        progress: trial_dir.ProgressFile,
    ) -> None:
        """Prepare the loop at step 0; `step` makes the batches, and is None where a user's script makes its own."""
        self._checksum = checksum
        self._setting = setting
        self._batch_source = step
        self._progress = progress
        self._step = 0
        self._garbage = StepwiseCollection(self._task.config.gc_every)
        self._garbage.begin()
        self._planned = self._plan.parity_steps + self._plan.max_warmup_steps + self._plan.min_windows
        self._reported_step, self._reported_at_s = 0, time.monotonic()
        self._step_s: float | None = None
        self._own_warmup_step_times_s: list[float] = []
        self.outcome = LoopRecord()

    def steps(self, meter: MemoryMeter) -> Steps[None]:
        """Yield all steps of the plan: recorded first steps, warm-up, timed windows.

        Raises:
            NumericsError, OverLimitError: as in `_record_first_steps`.
        """
        yield from self._record_first_steps(meter)
        # A collection in mid-window would be timed. Garbage of the build is collected now, and the remaining objects are
        # frozen, so that no later collection traverses them.
        gc.collect()
        gc.freeze()
        yield from self._warm_up()
        if not self.outcome.is_pruned:
            yield from self._measure()

    def _record_first_steps(self, meter: MemoryMeter) -> Steps[None]:
        """Record losses, norms and checksums of the first steps, and on the CPU the memory peak of the first two.

        Raises:
            NumericsError: loss or norm is not finite.
            OverLimitError: some rank took more memory than the task allows.
        """
        for step in range(self._plan.parity_steps):
            with self._while_compiling():
                yield from self._record_step()
            self._report_progress("warming_up")
            if step == PROFILED_STEPS - 1:
                self._require_memory_limit(meter.end_of_profiled_steps())

    def _end_step(self) -> None:
        self._step += 1
        self._garbage.end_step()

    def _while_compiling(self) -> contextlib.AbstractContextManager[None]:
        """Context in which the progress file is written regularly while the first steps compile, some again where
        shapes differ; no step ends meanwhile."""
        if not self._task.config.compiles:
            return contextlib.nullcontext()
        return self._progress.refreshed(Progress(phase="warming_up", step=self._step))

    def _record_step(self) -> Steps[None]:
        """Run a step and record its loss, gradient norm and checksum."""
        step = self._step
        loss, norm = yield self._batches(step)
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

    def _warm_up(self) -> Steps[None]:
        """Repeat steps until the slowest rank's step time is steady, the trial is too slow to win, or the plan allows
        no more."""
        times, own_times, outcome = list[float](), self._own_warmup_step_times_s, self.outcome
        while len(times) < self._plan.max_warmup_steps and not (throughput.is_steady(times) or outcome.is_pruned):
            losses, seconds = yield from self._timed([self._batches(self._step)])
            own_times.append(seconds)
            times.append(self._slowest(seconds))
            self._note_losses(losses)
            self._report_progress("warming_up")
            outcome.is_pruned = throughput.is_hopeless(times, self._plan)
        outcome.is_steady = throughput.is_steady(times)
        if outcome.is_pruned:
            outcome.window_step_times_s, outcome.own_step_times_s = times, own_times
        else:
            outcome.warmup_step_times_s = times

    def _measure(self) -> Steps[None]:
        """Time windows of steps until the plan's precision is reached or its limits end the timing."""
        count = throughput.steps_per_window(self.outcome.warmup_step_times_s, self._plan)
        self._reuse_steady_steps(count)
        times = self.outcome.window_step_times_s
        self._planned = self._step + max(0, self._plan.min_windows - len(times)) * count
        while not throughput.is_enough(times, count, self._plan):
            # Batches are made before the clock starts: the trainer's speed is measured, not the data's.
            batches = [self._batches(self._step + i) for i in range(count)]
            losses, own_seconds = yield from self._timed(batches, self._report_within_window)
            self.outcome.own_step_times_s.append(own_seconds / count)
            times.append(self._slowest(own_seconds) / count)
            self._note_losses(losses)
            self._report_progress("measuring")

    def _reuse_steady_steps(self, window_steps: int) -> None:
        """Count the last steps of the warm-up as timed windows where windows of slow steps would be the same."""
        # A script's waits for data are counted within its windows alone, so its warm-up cannot stand in for them.
        if self._batch_source is None:
            return
        outcome = self.outcome
        reused = throughput.reused_steps(outcome.warmup_step_times_s, window_steps, self._plan)
        warmup_steps = len(outcome.warmup_step_times_s) - reused
        outcome.window_step_times_s = outcome.warmup_step_times_s[warmup_steps:]
        outcome.own_step_times_s = self._own_warmup_step_times_s[warmup_steps:]
        outcome.warmup_step_times_s = outcome.warmup_step_times_s[:warmup_steps]

    def _timed(
        self, steps: list[list[Any]], after_step: Callable[[], None] = lambda: None
    ) -> Steps[tuple[list[float], float]]:
        """Run steps back to back; returns mean losses and seconds. Losses are fetched after the clock has stopped."""
        # Ranks start together: otherwise the first would time its wait for the last one's previous bookkeeping.
        dist.barrier()
        begin = clock(self._place.accelerator)
        losses = []
        for batches in steps:
            loss, _ = yield batches
            self._end_step()
            losses.append(loss)
            after_step()
        seconds = clock(self._place.accelerator) - begin
        return mesh.mean(torch.stack(losses), self._place), seconds

    def _batches(self, step: int) -> list[Any]:
        """Micro batches of this rank for a step: whole samples, also where the rank trains only on a part of each."""
        if self._batch_source is None:
            return []
        setting, size = self._setting, self._task.config.micro_batch
        indices = [
            data.micro_batch_indices(setting.data_rank, size, setting.accumulation, i)
            for i in range(setting.accumulation)
        ]
        return [self._batch_source.make_batch(step, samples, self._place.device) for samples in indices]

    def _slowest(self, seconds: float) -> float:
        """Seconds of the slowest rank, by a maximum over all ranks."""
        (slowest,) = mesh.largest([seconds], self._place)
        return slowest

    def _require_memory_limit(self, peak_gib: float | None) -> None:
        # The maximum over ranks, so that all ranks raise together: a lone one would leave its peers in a collective.
        limit = self._task.memory_limit_gib
        (peak,) = mesh.largest([peak_gib or 0.0], self._place)
        if limit is not None and peak > limit:
            raise OverLimitError(peak, limit)

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
    def _place(self) -> RankContext:
        return self._setting.context
