"""Measuring loop of one rank: recorded first steps, warm-up, timed windows."""

import contextlib
import gc
import math
import time
from collections.abc import Callable
from typing import Any, Literal

import torch
import torch.distributed as dist

from shardtune.api_schemas.trials.leases import TrialTask
from shardtune.api_schemas.trials.measure_plan import MeasurePlan
from shardtune.api_schemas.trials.measurements import StepRecord
from shardtune.api_schemas.trials.progress import Progress
from shardtune.api_schemas.trials.short_steps import ShortSteps, ShortStepTimes, extended_s
from shardtune.workers.rank import mesh, trial_dir
from shardtune.workers.rank.classify import NumericsError, OverLimitError
from shardtune.workers.rank.device import clock
from shardtune.workers.rank.measure import throughput
from shardtune.workers.rank.measure.memory import MemoryMeter
from shardtune.workers.rank.process.garbage import StepwiseCollection
from shardtune.workers.rank.rank_context import RankContext
from shardtune.workers.rank.strategies.base import TrainingSetup
from shardtune.workers.rank.training.batches import MicroBatches
from shardtune.workers.rank.training.skipped_steps import SkippedSteps
from shardtune.workers.rank.training.step import Step
from shardtune.workers.rank.training.step_runs import LoopRecord, Steps, StepTime

PROFILED_STEPS = 2
"""Number of first steps in which memory is profiled: the optimizer creates its state in the first, and has all of it in
the second."""


_STEPS_PER_REPORT = 10
"""Number of untimed steps after which their progress is written at the latest."""
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
        self._micro_batches = MicroBatches(setting, step)
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
        self._own_warmup_step_times_s: list[float] = []
        self._spent_s: list[float] = []
        self.outcome = LoopRecord()

    def steps(self, meter: MemoryMeter) -> Steps[None]:
        """Yield all steps of the plan: recorded first steps, steps whose losses alone are kept, warm-up, timed windows.

        Raises:
            NumericsError, OverLimitError: as in `_record_first_steps`.
        """
        yield from self._record_first_steps(meter)
        yield from self._keep_losses()
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
                yield from self._record_step(self._micro_batches.of_recorded_step(self._step, self._short))
            self._report_progress("warming_up")
            if step == PROFILED_STEPS - 1:
                self._require_memory_limit(meter.end_of_profiled_steps())

    def _keep_losses(self) -> Steps[None]:
        """Train further first steps of which only the loss is kept, so that the losses of two recipes compare.

        Raises:
            NumericsError: a loss is not finite.
        """
        for _ in range(self._plan.loss_steps - self._plan.parity_steps):
            loss, _ = yield from self.skipped.trained(self._micro_batches.of_step(self._step), self._step)
            self._end_step()
            self._note_losses(mesh.mean(loss.reshape(1), self._place))
            self._report_progress("training", throttle=self._step % _STEPS_PER_REPORT > 0)
        self.outcome.first_losses = len(self.outcome.losses)

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

    def _while_compiling(self) -> contextlib.AbstractContextManager[None]:
        """Context in which the progress file is written regularly while the first steps compile, some again where
        shapes differ; no step ends meanwhile."""
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

    def _warm_up(self) -> Steps[None]:
        """Repeat steps until the slowest rank's step time is steady, the trial is too slow to win, or the plan allows
        no more."""
        times, own_times, outcome = list[float](), self._own_warmup_step_times_s, self.outcome
        # By the seconds that passed: an extended time multiplies what little two short steps differ by chance.
        spent = self._spent_s
        while len(times) < self._plan.max_warmup_steps and not (throughput.is_steady(spent) or outcome.is_pruned):
            time_of_step = yield from self._time_step()
            own_times.append(time_of_step.own_s)
            times.append(time_of_step.slowest_s)
            spent.append(time_of_step.spent_s)
            self._report_progress("warming_up")
            outcome.is_pruned = throughput.is_hopeless(times, self._plan)
        outcome.is_steady = throughput.is_steady(spent)
        if outcome.is_pruned:
            outcome.window_step_times_s, outcome.own_step_times_s = times, own_times
        else:
            outcome.warmup_step_times_s = times

    def _measure(self) -> Steps[None]:
        """Time windows of steps until the plan's precision is reached or its limits end the timing."""
        if self._plan.is_extended:
            yield from self._measure_short_steps()
            return
        cycles = max(1, throughput.steps_per_window(self.outcome.warmup_step_times_s, self._plan) // self._cycle)
        count = cycles * self._cycle
        self._reuse_steady_steps(cycles)
        times = self.outcome.window_step_times_s
        self._planned = self._step + max(0, self._plan.min_windows - len(times)) * count
        while not throughput.is_enough(times, count, self._plan):
            # Batches are made before the clock starts: the trainer's speed is measured, not the data's.
            batches = [self._micro_batches.of_step(self._step + i) for i in range(count)]
            losses, own_seconds = yield from self._timed(batches, self._report_within_window)
            self.outcome.own_step_times_s.append(own_seconds / count)
            times.append(self._slowest(own_seconds) / count)
            self._note_losses(losses)
            self._report_progress("measuring")

    def _measure_short_steps(self) -> Steps[None]:
        """Time pairs of short steps, each a window of one extended step, until the extended time is precise enough."""
        outcome, spent = self.outcome, self._spent_s
        self._reuse_steady_steps(window_steps=1)
        times = outcome.window_step_times_s
        spent[:] = spent[len(outcome.warmup_step_times_s) :]
        self._planned = self._step + max(0, self._plan.min_windows - len(times)) * self._steps_per_time
        while not throughput.is_enough(times, 1, self._plan, sum(spent)):
            time_of_step = yield from self._time_step()
            outcome.own_step_times_s.append(time_of_step.own_s)
            times.append(time_of_step.slowest_s)
            spent.append(time_of_step.spent_s)
            self._report_progress("measuring")

    def _time_step(self) -> Steps[StepTime]:
        """Time a step, or a cycle of steps whose samples have several lengths; with short steps, time one at each number
        of micro batches and extend to the whole step."""
        counts = None if self._short is None else self._short.accumulations
        if counts is None:
            cycle = [self._micro_batches.of_step(self._step + i) for i in range(self._cycle)]
            losses, seconds = yield from self._timed(cycle)
            slowest_s = self._slowest(seconds)
            self._note_losses(losses)
            return StepTime(seconds / self._cycle, slowest_s / self._cycle, slowest_s)
        own, slowest = list[float](), list[float]()
        for count in counts:
            losses, seconds = yield from self._timed([self._micro_batches.of_step(self._step, count)])
            own.append(seconds)
            slowest.append(self._slowest(seconds))
            self._note_losses(losses)
        self.outcome.short_pairs_s.append((slowest[0], slowest[1]))
        whole = self._setting.accumulation
        return StepTime(
            extended_s(own[0], own[1], counts, whole), extended_s(slowest[0], slowest[1], counts, whole), sum(slowest)
        )

    @property
    def warmup_steps(self) -> int:
        """Number of steps of the warm-up that no window counts."""
        return len(self.outcome.warmup_step_times_s) * self._cycle

    def short_step_times(self) -> ShortStepTimes | None:
        """Times of the short steps behind the windows; None in a run of whole steps."""
        short, windows = self._short, len(self.outcome.window_step_times_s)
        if short is None:
            return None
        pairs = self.outcome.short_pairs_s[-windows:] if windows else []
        return ShortStepTimes(
            parity_samples=short.parity_samples,
            parity_accumulation=short.parity_accumulation,
            accumulations=short.accumulations,
            fewer_s=tuple(fewer for fewer, _ in pairs),
            more_s=tuple(more for _, more in pairs),
        )

    def _reuse_steady_steps(self, window_steps: int) -> None:
        """Count the last warm-up steps as timed windows, where a step is so slow that a window is a single step."""
        # A script's waits for data are counted within its windows alone, so its warm-up cannot stand in for them.
        if self._micro_batches.are_own:
            return
        outcome = self.outcome
        reused = throughput.reused_steps(self._spent_s, window_steps, self._plan)
        warmup_steps = len(outcome.warmup_step_times_s) - reused
        outcome.window_step_times_s = outcome.warmup_step_times_s[warmup_steps:]
        outcome.own_step_times_s = self._own_warmup_step_times_s[warmup_steps:]
        outcome.warmup_step_times_s = outcome.warmup_step_times_s[:warmup_steps]

    def _timed(
        self, steps: list[list[Any]], after_step: Callable[[], None] = lambda: None
    ) -> Steps[tuple[list[float], float]]:
        """Run steps back to back; returns mean losses and seconds. Losses are fetched after the clock has stopped. Where a
        loss scale skipped a step, all are run again: a skipped step makes no update."""
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
    def _short(self) -> ShortSteps | None:
        return self._plan.short_steps

    @property
    def _place(self) -> RankContext:
        return self._setting.context
