"""The measuring loop of one rank: recorded first steps, warm-up, timed windows."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import torch
import torch.distributed as dist

from api_schemas.leases import TrialTask
from api_schemas.measurements import MeasurePlan, Progress, StepRecord
from workers.rank import data, mesh, trial_dir
from workers.rank.classify import NumericsError, OverLimitError
from workers.rank.measure import throughput
from workers.rank.measure.memory import MemoryMeter
from workers.rank.place import Place
from workers.rank.strategies.base import Setting, Trainer

PROFILED_STEPS = 2
"""The optimizer's state appears in the first step; the second has all of it."""


@dataclass
class Outcome:
    """What the loop has recorded so far."""

    trajectory: list[StepRecord] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    """Mean over the global batch, of every step in order."""
    warmup_step_times_s: list[float] = field(default_factory=list)
    is_steady: bool = False
    """Whether the warm-up's last steps took the same time."""
    window_step_times_s: list[float] = field(default_factory=list)
    own_step_times_s: list[float] = field(default_factory=list)


class Loop:
    """Runs a trainer through a task's plan. Every decision is taken from numbers that all ranks share."""

    def __init__(self, trainer: Trainer, setting: Setting, vocab_size: int, progress: trial_dir.ProgressFile) -> None:
        self._trainer = trainer
        self._setting = setting
        self._vocab_size = vocab_size
        self._progress = progress
        self._step = 0
        self.outcome = Outcome()

    def record_first_steps(self, meter: MemoryMeter) -> None:
        """Record the numeric trajectory, and the memory peak of the first two steps on the CPU.

        Raises:
            NumericsError: loss or norm is not finite.
            OverLimitError: some rank took more memory than the task allows.
        """
        for step in range(self._plan.parity_steps):
            loss, norm = self._run_step(self._batches(step))
            (mean_loss,) = mesh.mean(loss.reshape(1), self._place)
            self._note_losses([mean_loss])
            self._require_finite(float(norm), "gradient norm", step)
            total, squares = self._trainer.parameter_checksum()
            self._require_finite(squares, "sum of squared parameters", step)
            self.outcome.trajectory.append(
                StepRecord(
                    step=step, loss=mean_loss, grad_norm=float(norm), parameter_sum=total, parameter_square_sum=squares
                )
            )
            self._tell("warming_up")
            if step == PROFILED_STEPS - 1:
                self._check_limit(meter.end_of_profiled_steps())

    def warm_up(self) -> None:
        """Repeat steps until their time is steady on the slowest rank, or the plan allows no more."""
        times: list[float] = []
        while len(times) < self._plan.max_warmup_steps and not throughput.is_steady(times):
            losses, seconds = self._timed([self._batches(self._step)])
            seconds = self._slowest(seconds)
            times.append(seconds)
            self._note_losses(losses)
            self.outcome.warmup_step_times_s.append(seconds)
            self._tell("warming_up")
        self.outcome.is_steady = throughput.is_steady(times)

    def measure(self) -> None:
        """Time windows of steps until the plan is satisfied."""
        times = self.outcome.window_step_times_s
        while not throughput.is_enough(times, self._plan):
            # Made beforehand: the trainer's speed is measured, not the data's.
            batches = [self._batches(self._step + i) for i in range(self._plan.window_steps)]
            losses, own_seconds = self._timed(batches, self._tell_within_window)
            self.outcome.own_step_times_s.append(own_seconds / self._plan.window_steps)
            times.append(self._slowest(own_seconds) / self._plan.window_steps)
            self._note_losses(losses)
            self._tell("measuring")

    def _timed(
        self, steps: list[list[torch.Tensor]], after_step: Callable[[], None] = lambda: None
    ) -> tuple[list[float], float]:
        """Run steps back to back; losses over all ranks are fetched after the clock has stopped."""
        dist.barrier()
        begin = throughput.clock(self._place)
        losses = []
        for batches in steps:
            losses.append(self._run_step(batches)[0])
            after_step()
        seconds = throughput.clock(self._place) - begin
        return mesh.mean(torch.stack(losses), self._place), seconds

    def _run_step(self, batches: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor | float]:
        """One optimizer step; the rank's mean loss and the gradient norm, both possibly still being computed."""
        losses = [self._trainer.micro_step(tokens, last=i == len(batches) - 1) for i, tokens in enumerate(batches)]
        norm = self._trainer.optimizer_step()
        self._step += 1
        return torch.stack(losses).mean(), norm

    def _batches(self, step: int) -> list[torch.Tensor]:
        """This rank's micro batches of a step."""
        workload, micro_batch = self._task.workload, self._task.config.micro_batch
        return [
            data.samples(
                workload.seed,
                step,
                data.micro_batch_indices(self._place.rank, micro_batch, self._setting.accumulation, micro),
                workload.sequence_length,
                self._vocab_size,
                self._place.device,
            )
            for micro in range(self._setting.accumulation)
        ]

    def _slowest(self, seconds: float) -> float:
        """The slowest rank's time."""
        (slowest,) = mesh.largest([seconds], self._place)
        return slowest

    def _check_limit(self, peak_gib: float | None) -> None:
        limit = self._task.memory_limit_gib
        (peak,) = mesh.largest([peak_gib or 0.0], self._place)
        if limit is not None and peak > limit:
            raise OverLimitError(peak, limit)

    def _note_losses(self, losses: list[float]) -> None:
        for loss in losses:
            self._require_finite(loss, "loss", len(self.outcome.losses))
            self.outcome.losses.append(loss)

    def _require_finite(self, value: float, what: str, step: int) -> None:
        if not math.isfinite(value):
            raise NumericsError(f"{what} is {value} at step {step}")

    def _tell(self, phase: Literal["warming_up", "measuring"], throttle: bool = False) -> None:
        speed = None
        if self.outcome.window_step_times_s:
            tokens = self._task.workload.tokens_per_step * len(self.outcome.window_step_times_s)
            speed = tokens / sum(self.outcome.window_step_times_s) / self._place.world_size
        self._progress.write(Progress(phase=phase, step=self._step, tokens_per_s_per_gpu=speed), throttle)

    def _tell_within_window(self) -> None:
        self._tell("measuring", throttle=True)

    @property
    def _task(self) -> TrialTask:
        return self._setting.task

    @property
    def _plan(self) -> MeasurePlan:
        return self._setting.task.plan

    @property
    def _place(self) -> Place:
        return self._setting.place
