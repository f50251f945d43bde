"""Moments of a step at which its repeated blocks begin and end, in forward and in backward."""

import contextlib
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from shardtune.workers.rank.own_code.step_recorder import StepRecorder


class BlockMoments:
    """Memory figures of a step by its repeated blocks, measured by hooks on the blocks and on their outputs. Closing
    the stack `hooks` removes the hooks.

    The backward of a block lasts from the moment when the gradient of its output is known to the moment when the
    gradient of the preceding block's output is known.
    """

    def __init__(self, recorder: StepRecorder, blocks: list[nn.Module], hooks: contextlib.ExitStack) -> None:
        self.outside = 0
        """Number of bytes alive when the forward pass of the first block began."""
        self.kept = 0
        """Number of bytes that the forward passes of all blocks together keep for the backward pass."""
        self.boundary = 0
        """Number of bytes of the inputs of all blocks together."""
        self.loss = 0
        """Peak number of bytes between the end of the last block's forward and the beginning of its backward, where the
        loss is computed."""
        self.working = 0
        """Largest number of bytes that the backward of one block needed in addition to what blocks kept for backward."""
        self.calls = 0
        self._recorder = recorder
        self._begun_at = 0
        self._kept_by_call: list[int] = []
        self._inputs: set[int] = set()
        self._running: int | None = None
        for block in blocks:
            hooks.callback(block.register_forward_pre_hook(self._begin, with_kwargs=True).remove)
            hooks.callback(block.register_forward_hook(self._end).remove)

    def backward_begins(self) -> None:
        """Record that the loss is known and backward begins."""
        self._recorder.part = "backward"

    def backward_ended(self) -> int:
        """Record that backward has ended. Returns the peak number of bytes since the last time that the gradient at a
        border between two blocks became known."""
        tail = self._recorder.end_interval()
        if self._running is not None:
            # No gradient of a first block's input exists: its backward is the last.
            self._note_working(tail, self._running)
        if self.loss == 0:
            self.loss = tail
        return tail

    def _begin(self, _block: nn.Module, args: Any, kwargs: Any) -> None:
        recorder = self._recorder
        if recorder.part == "backward":
            # A checkpointed block that runs again.
            return
        if self.calls == 0:
            self.outside = recorder.live
        self._begun_at, recorder.part = recorder.live, "blocks"
        for tensor in tree_leaves((args, kwargs)):
            if isinstance(tensor, torch.Tensor) and tensor.requires_grad:
                self._note_input(tensor)

    def _note_input(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage._cdata not in self._inputs:
            self._inputs.add(storage._cdata)
            self.boundary += int(storage.nbytes())
        if self.calls == 0:
            tensor.register_hook(lambda _gradient: self._gradient_of_output(-1))  # type: ignore[no-untyped-call]

    def _end(self, _block: nn.Module, _args: Any, output: Any) -> None:
        recorder = self._recorder
        if recorder.part == "backward":
            return
        recorder.part = "outside"
        self._kept_by_call.append(max(recorder.live - self._begun_at, 0))
        self.kept += self._kept_by_call[-1]
        number, self.calls = self.calls, self.calls + 1
        recorder.end_interval()
        for tensor in tree_leaves(output):
            if isinstance(tensor, torch.Tensor) and tensor.requires_grad:
                tensor.register_hook(lambda _gradient: self._gradient_of_output(number))  # type: ignore[no-untyped-call]
                return

    def _gradient_of_output(self, number: int) -> None:
        """Record that the gradient of a block's output is known. The block number -1 stands for the gradient of the
        first block's input."""
        peak = self._recorder.end_interval()
        if self._running is None:
            if number == self.calls - 1:
                self.loss = peak
        elif number < self._running:
            self._note_working(peak, self._running)
        self._running = number if number >= 0 else None

    def _note_working(self, peak: int, number: int) -> None:
        held = self.outside + sum(self._kept_by_call[: number + 1])
        self.working = max(self.working, peak - held, 0)
