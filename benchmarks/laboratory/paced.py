"""Blocks that wait where a model computes: real parameters and gradients, real hooks, no work for the cores."""

import time
from typing import Any

import torch
from torch import nn

from benchmarks.laboratory.programs import BACKWARD_S, BLOCKS, FORWARD_S, WEIGHTS


class _Wait(torch.autograd.Function):
    """Sleep in forward and in backward. A sleep releases the interpreter's lock, so gloo's threads go on."""

    @staticmethod
    def forward(
        ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, forward_s: float, backward_s: float
    ) -> torch.Tensor:
        ctx.backward_s, ctx.shape = backward_s, weight.shape
        time.sleep(forward_s)
        return hidden.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        time.sleep(ctx.backward_s)
        # A gradient from `sum()` is expanded, which gloo's `irecv` refuses between stages.
        return gradient.contiguous(), torch.zeros(ctx.shape), None, None


class PacedBlock(nn.Module):
    """Block with one weight of the size of all of a transformer block's."""

    def __init__(self, slowness: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(WEIGHTS))
        self._times = (FORWARD_S * slowness, BACKWARD_S * slowness)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Wait, and pass the hidden states on."""
        return _Wait.apply(hidden, self.weight, *self._times)  # type: ignore[no-untyped-call,no-any-return]


def stack(slowness: float, blocks: int = BLOCKS) -> nn.Sequential:
    """Model of paced blocks, each of which waits `slowness` times as long as usual."""
    return nn.Sequential(*(PacedBlock(slowness) for _ in range(blocks)))
