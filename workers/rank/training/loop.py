"""Measuring loop of one rank: recorded first steps, warm-up, timed windows."""

import gc

from shardtune.api_schemas.trials.measurements import CompiledFrames
from shardtune.api_schemas.trials.short_steps import ShortStepTimes, extended_s
from shardtune.workers.rank import mesh, trial_dir
from shardtune.workers.rank.classify import OverLimitError
from shardtune.workers.rank.measure import compilations, throughput
from shardtune.workers.rank.measure.memory import MemoryMeter
from shardtune.workers.rank.strategies.base import TrainingSetup
from shardtune.workers.rank.training.step import Step
from shardtune.workers.rank.training.step_loop import Checksum, StepLoop
from shardtune.workers.rank.training.step_runs import Steps, StepTime

PROFILED_STEPS = 2
"""Number of first steps in which memory is profiled. The optimizer creates its state in the first one, and all of its
state exists throughout the second."""
_STEPS_PER_REPORT = 10
"""Maximum number of untimed steps between two writes of the progress file."""


class Loop(StepLoop):
    """Measuring loop that yields the steps of a task's plan and times them."""

    def __init__(
        self,
        checksum: Checksum,
        setting: TrainingSetup,
        step: Step | None,
        progress: trial_dir.ProgressFile,
    ) -> None:
        super().__init__(checksum, setting, step, progress)
        if self._task.config.compiles:
            compilations.keep_records()
        self._own_warmup_step_times_s: list[float] = []
        self._spent_s: list[float] = []
        self._compiled_before: list[compilations.Compilations] = []
        """Numbers of what this rank had compiled before each step of the warm-up."""

    def steps(self, meter: MemoryMeter) -> Steps[None]:
        """Yield all steps of the plan: first steps that are recorded, further steps of which only the loss is kept,
        warm-up steps, and timed windows (groups of steps timed together).

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
        """Record losses, gradient norms and parameter checksums of the first steps; on the CPU also the memory peak of
        the first two.

        Raises:
            NumericsError: loss or norm is not finite.
            OverLimitError: some rank took more memory than the task allows.
        """
        for step in range(self._plan.parity_steps):
            batches = self._micro_batches.of_recorded_step(self._step, self._short)
            with self._while_compiling():
                yield from self._record_step(batches)
            self._report_progress("warming_up")
            if step == PROFILED_STEPS - 1:
                self._require_memory_limit(meter.end_of_profiled_steps())

    def _keep_losses(self) -> Steps[None]:
        """Train further steps of which only the loss is kept. These losses serve to compare two ways of training, such
        as two precisions.

        Raises:
            NumericsError: a loss is not finite.
        """
        for _ in range(self._plan.loss_steps - self._plan.parity_steps):
            loss, _ = yield from self.skipped.trained(self._micro_batches.of_step(self._step), self._step)
            self._end_step()
            self._note_losses(mesh.mean(loss.reshape(1), self._place))
            self._report_progress("training", throttle=self._step % _STEPS_PER_REPORT > 0)
        self.outcome.first_losses = len(self.outcome.losses)

    def _warm_up(self) -> Steps[None]:
        """Repeat steps until the slowest rank's step time is steady, the trial is too slow to win, or the plan allows
        no more."""
        times, own_times, outcome = list[float](), self._own_warmup_step_times_s, self.outcome
        # By the seconds that passed: an extended time multiplies what little two short steps differ by chance.
        spent = self._spent_s
        while len(times) < self._plan.max_warmup_steps and not (throughput.is_steady(spent) or outcome.is_pruned):
            self._compiled_before.append(compilations.count())
            time_of_step = yield from self._time_step()
            own_times.append(time_of_step.own_s)
            times.append(time_of_step.slowest_s)
            spent.append(time_of_step.spent_s)
            self._report_progress("warming_up")
            outcome.is_pruned = throughput.is_hopeless(times, self._plan)
        outcome.is_steady = throughput.is_steady(spent)
        if outcome.is_pruned:
            outcome.window_step_times_s, outcome.own_step_times_s = times, own_times
            outcome.compiled_before_timing = self._compiled_before[0]
        else:
            outcome.warmup_step_times_s = times
            outcome.compiled_before_timing = compilations.count()

    def _measure(self) -> Steps[None]:
        """Time windows (groups of steps that are timed together) until the step time is as precise as the plan
        requires, or the plan's limits end the timing."""
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
        """Time pairs of short steps, which have two different numbers of micro batches. From each pair the time of a
        whole step is extrapolated. The timing ends when this time is precise enough."""
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
        """Time one step; if samples have several lengths, a cycle of steps. With short steps, time one step at each of
        two numbers of micro batches, and extrapolate to the whole step."""
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
        """Number of warm-up steps; those that also count as timed windows (groups of steps timed together) are left
        out."""
        return len(self.outcome.warmup_step_times_s) * self._cycle

    def compiled_frames(self) -> CompiledFrames | None:
        """Numbers of what this rank compiled; None if the configuration compiles nothing."""
        return compilations.since(self.outcome.compiled_before_timing) if self._task.config.compiles else None

    def short_step_times(self) -> ShortStepTimes | None:
        """Times of the short steps (steps with fewer micro batches) from which step times were extrapolated; None if
        the run timed whole steps."""
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
        """Count the last warm-up steps as timed windows (groups of steps timed together), too, if their times were
        steady and a window has only one step."""
        # A script's waits for data are counted within its windows alone, so its warm-up cannot stand in for them.
        if self._micro_batches.are_own:
            return
        outcome = self.outcome
        reused = throughput.reused_steps(self._spent_s, window_steps, self._plan)
        warmup_steps = len(outcome.warmup_step_times_s) - reused
        outcome.window_step_times_s = outcome.warmup_step_times_s[warmup_steps:]
        outcome.own_step_times_s = self._own_warmup_step_times_s[warmup_steps:]
        outcome.warmup_step_times_s = outcome.warmup_step_times_s[:warmup_steps]
        if reused:
            outcome.compiled_before_timing = self._compiled_before[warmup_steps]

    def _require_memory_limit(self, peak_gib: float | None) -> None:
        # The maximum over ranks, so that all ranks raise together: a lone one would leave its peers in a collective.
        limit = self._task.memory_limit_gib
        (peak,) = mesh.largest([peak_gib or 0.0], self._place)
        if limit is not None and peak > limit:
            raise OverLimitError(peak, limit)
