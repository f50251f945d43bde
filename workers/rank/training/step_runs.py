"""Runs of training steps that a generator yields, and the record of what they showed."""

import contextlib
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import torch

from shardtune.api_schemas.trials.measurements import StepRecord
from shardtune.workers.rank.measure.compilations import NOTHING, Compilations

StepResult = tuple[torch.Tensor, torch.Tensor | float | None]
"""Result of an optimizer step: this rank's mean loss and the gradient norm. The device may not have finished computing
them."""
_Result = TypeVar("_Result")
Steps = Generator[list[Any], StepResult, _Result]
"""Generator that yields the micro batches of each step to run. It receives the result of the step in return."""


class StepRunner(Protocol):
    """Part of a trainer's interface: the methods that make up a step."""

    def begin_step(self, micro_batches: int) -> None:
        """Begin a step of this number of micro batches, as `Trainer.begin_step` describes."""

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
    trainer.begin_step(len(batches))
    losses = [trainer.micro_step(batch, last=i == len(batches) - 1) for i, batch in enumerate(batches)]
    norm = trainer.optimizer_step()
    return torch.stack(losses).mean(), norm


@dataclass
class LoopRecord:
    """Figures that the measuring loop has recorded so far."""

    trajectory: list[StepRecord] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    """Mean losses over the global batch, one for each step in order."""
    first_losses: int = 0
    """Number of losses before the warm-up: those of the steps that are fully recorded, and of the steps of which only
    the loss is kept."""
    warmup_step_times_s: list[float] = field(default_factory=list)
    is_steady: bool = False
    """Whether the last warm-up steps took the same time, so that the timing began in a steady state."""
    is_pruned: bool = False
    """Whether the trial was ended early as too slow to win; see `Measurement.is_pruned`."""
    window_step_times_s: list[float] = field(default_factory=list)
    """Seconds per step of the slowest rank, one entry for each timed window (a group of steps timed together)."""
    own_step_times_s: list[float] = field(default_factory=list)
    """Seconds per step of this rank, one entry for each timed window (a group of steps timed together)."""
    compiled_before_timing: Compilations = NOTHING
    """Numbers of what this rank had compiled before the first step whose time counts."""
    short_pairs_s: list[tuple[float, float]] = field(default_factory=list)
    """Seconds of each pair of timed short steps (steps with fewer micro batches) on the slowest rank; pairs of the
    warm-up included. See `ShortStepTimes`."""
    data_wait_s: float | None = None
    """Seconds that a user's script waited for data; see `RankReport.data_wait_s`."""


@dataclass(frozen=True)
class StepTime:
    """Time of one step. It was measured directly, is the mean over a cycle of steps, or was extrapolated from steps of
    fewer micro batches."""

    own_s: float
    """Seconds of the step on this rank."""
    slowest_s: float
    """Seconds of the step on the slowest rank."""
    spent_s: float
    """Seconds that the measurement itself took on the slowest rank. If the step's time was extrapolated from short
    steps, they are fewer than those of a whole step."""
