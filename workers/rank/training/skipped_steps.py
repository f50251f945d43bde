"""Steps that a dynamic loss scale skips, since their gradients overflowed float16: they are counted and trained again, and no
figure of theirs is recorded or timed."""

import math
from collections.abc import Sequence
from typing import Any

import torch

from shardtune.workers.rank import mesh
from shardtune.workers.rank.classify import NumericsError
from shardtune.workers.rank.rank_context import RankContext
from shardtune.workers.rank.training.step_runs import StepResult, Steps

MOST_TRIES = 16
"""Maximum number of tries of one step. A try fails if its gradients overflow float16; it then halves the loss scale,
which begins at 65,536 and so reaches 1. Gradients that still overflow would overflow without any loss scale."""
MOST_WINDOWS = 8
"""Maximum number of timed windows (groups of steps that are timed together) that a run measures again because the loss
scale skipped a step in them. Even a settled loss scale doubles once in 2,000 steps, and may then overflow."""


class SkippedSteps:
    """Count of a run's steps that the dynamic loss scale skipped. Every rank sees the same gradient norms, so that all
    ranks count the same steps."""

    def __init__(self, place: RankContext, *, scales_loss: bool) -> None:
        self._place, self._scales_loss = place, scales_loss
        self.count = 0
        """Number of steps that the loss scale has skipped so far."""
        self._windows = 0

    def trained(self, batches: list[Any], step: int) -> Steps[StepResult]:
        """Repeat a step until it updates the weights; returns its result. Weights and samples are the same in each try,
        so that the result does not depend on the loss scale with which the run began.

        Raises:
            NumericsError: the step's gradients overflow at any scale.
        """
        for _ in range(MOST_TRIES):
            result: StepResult = yield batches
            loss, norm = result
            if not self._is_skipped(norm):
                return result
            (mean_loss,) = mesh.mean(loss.reshape(1), self._place)
            if not math.isfinite(mean_loss):
                # The forward pass overflowed, which no loss scale mends: the loop rejects the loss.
                return result
            self.count += 1
        raise NumericsError(
            f"gradients overflowed float16 in {MOST_TRIES} tries of step {step}, though the loss scale was halved after each; "
            "use precision 'bf16-mixed' or 'fp32'"
        )

    def spoils(self, norms: Sequence[torch.Tensor | float | None]) -> bool:
        """Count the skipped steps of a timed window (a group of steps that are timed together): those whose gradient
        norm is not finite. Returns whether the window had such a step and must be measured again.

        Raises:
            NumericsError: too many windows had skipped steps.
        """
        skipped = sum(self._is_skipped(norm) for norm in norms)
        self.count += skipped
        self._windows += skipped > 0
        if self._windows > MOST_WINDOWS:
            raise NumericsError(
                f"gradients overflowed float16 in {self._windows} timed windows, {self.count} steps in all, so that no speed was "
                "measured; use precision 'bf16-mixed' or 'fp32'"
            )
        return skipped > 0

    def _is_skipped(self, norm: torch.Tensor | float | None) -> bool:
        return self._scales_loss and norm is not None and not math.isfinite(float(norm))
