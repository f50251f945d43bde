"""MLPs of a model's blocks, computed over slices of the tokens: activations between an MLP's linear layers exist for one
slice at a time, in forward, in recomputation and in backward.

A slice is checkpointed here and not by `torch.utils.checkpoint`, because all slices keep one tensor, the MLP's input, before
the first of them runs. A checkpoint around the whole block then ends its recomputation at the MLP's input, and the MLP runs
once more in backward, not twice (torch 2.13 ends it at the last tensor that forward saved).
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import torch
from torch import nn

from shardtune.api_schemas.strategies.fields.mlp_slices import rejected
from shardtune.workers.blocks.mlp_modules import mlp_of

Forward = Callable[[torch.Tensor], torch.Tensor]

_RUNNING = ContextVar("mlp_slices_running", default=False)


class SliceError(Exception):
    """Exception for a block that calls its MLP in a way that slices do not support, or for a second forward that
    differs from the first."""


def slice_mlps(blocks: list[nn.Module], count: int) -> None:
    """Make the MLP of each block compute `count` slices of its tokens one after the other, in place. Call this before
    sharding or wrapping.

    Raises:
        ValueError: the MLP of a block is not found, or may depend on more than one token at a time.
    """
    if not blocks:
        raise rejected(count, "it has no list of repeated blocks")
    try:
        mlps = {id(mlp): mlp for mlp in map(mlp_of, blocks)}
    except ValueError as error:
        raise rejected(count, str(error)) from error
    for mlp in mlps.values():
        # The forward is replaced, not the module: names, and what sharding does to the MLP's layers, stay.
        mlp.forward = _in_slices(mlp.forward, count)


def is_running() -> bool:
    """Whether the forward of an MLP slice is running. Selective checkpointing of the block then keeps none of its
    products."""
    return _RUNNING.get()


def sizes(tokens: int, count: int) -> list[int]:
    """Number of tokens in each of `count` slices; these numbers differ by at most 1. If there are fewer tokens than
    slices, the last slices are empty, so that every rank gathers weights equally often, however long its rows are."""
    return [tokens // count + (index < tokens % count) for index in range(count)]


def joined(outputs: list[torch.Tensor]) -> torch.Tensor:
    """Outputs of all slices as one tensor."""
    return torch.cat(outputs, dim=1)


def _in_slices(forward: Forward, count: int) -> Callable[..., torch.Tensor]:
    @functools.wraps(forward)
    def run(*args: Any, **kwargs: Any) -> torch.Tensor:
        if len(args) != 1 or kwargs or not isinstance(args[0], torch.Tensor):
            raise SliceError(
                f"mlp_slices ({count}) expects that a block calls its MLP as mlp(hidden_states); set it to 1"
            )
        tokens = args[0]
        # One row of all tokens; an MLP that looks at the number of axes still finds three.
        row = tokens.reshape(1, -1, tokens.shape[-1])
        # One operator for all slices: its backward joins their gradients once, where one view of each slice would add
        # tensors of the whole input's size.
        parts = torch.split(row, sizes(row.shape[1], count), dim=1)
        with _marked():
            if torch.is_grad_enabled():
                kept, first = _KeptRow(row), 0
                outputs = []
                for part in parts:
                    outputs.append(_Slice(forward, kept, first, part).run(part))
                    first += part.shape[1]
            else:
                outputs = [forward(part) for part in parts]
        output = joined(outputs)
        return output.reshape(*tokens.shape[:-1], output.shape[-1])

    return run


class _SavedRow(torch.autograd.Function):
    """Autograd function that saves a row like the input of any operator, so that checkpointing or offload around the
    MLP handles it. It computes nothing, and its backward is never called."""

    @staticmethod
    def forward(ctx: Any, anchor: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(row)
        return torch.empty_like(anchor)

    @staticmethod
    def backward(ctx: Any, *_grads: torch.Tensor) -> None:
        raise AssertionError("nothing depends on it")


class _KeptRow:
    """Input of an MLP, which is kept once for all its slices from forward to backward."""

    def __init__(self, row: torch.Tensor) -> None:
        self._needs_gradient = row.requires_grad
        # A node exists only where an input requires gradients; the row itself may not.
        anchor = torch.empty(0, requires_grad=True)
        # Its result is kept, not its node alone: the node of a result that is gone has freed what it saved (torch 2.11).
        self._saver: torch.Tensor | None = _SavedRow.apply(anchor, row)  # type: ignore[no-untyped-call]
        self._row: torch.Tensor | None = None

    def part(self, first: int, length: int) -> torch.Tensor:
        """Slice of the row that is the input of a second forward. It is detached, so that gradients end at it."""
        if self._row is None:
            # Asked once: a checkpoint around the block gives what it restored once only.
            assert self._saver is not None
            node: Any = self._saver.grad_fn
            (self._row,), self._saver = node.saved_tensors, None
        return self._row.narrow(1, first, length).detach().requires_grad_(self._needs_gradient)


class _AllRestored(Exception):
    """Exception that ends a second forward as soon as it has saved all tensors that the first one saved. The rest is
    not needed; and weights of the last layer that hooks gathered, as in ZeRO-3, stay gathered until its backward."""


class _Slice:
    """Checkpoint of one slice. In place of the tensors that the MLP's operators save in forward it keeps only their
    numbers. When backward first asks for a tensor, a second forward restores them all."""

    def __init__(self, forward: Forward, kept: _KeptRow, first: int, part: torch.Tensor) -> None:
        self._forward, self._kept = forward, kept
        self._first, self._length = first, part.shape[1]
        self._saved: list[tuple[torch.Size, torch.dtype]] = []
        self._restored: dict[int, torch.Tensor] | None = None
        self._device = part.device.type
        self._casts, self._dtype = torch.is_autocast_enabled(self._device), torch.get_autocast_dtype(self._device)

    def run(self, part: torch.Tensor) -> torch.Tensor:
        """First forward of the slice."""
        with torch.autograd.graph.saved_tensors_hooks(self._number_of, self._tensor_of):
            return self._forward(part)

    def _number_of(self, tensor: torch.Tensor) -> int:
        self._saved.append((tensor.shape, tensor.dtype))
        return len(self._saved) - 1

    def _tensor_of(self, number: int) -> torch.Tensor:
        if self._restored is None:
            self._restored = self._restore()
        try:
            return self._restored.pop(number)
        except KeyError:
            raise SliceError(
                "mlp_slices restores each tensor once, and backward asked for one twice; set it to 1"
            ) from None

    def _restore(self) -> dict[int, torch.Tensor]:
        restored: dict[int, torch.Tensor] = {}

        def store(tensor: torch.Tensor) -> int:
            number = len(restored)
            # Detached: the second forward's own graph must go.
            restored[number] = tensor.detach()
            if (tensor.shape, tensor.dtype) != self._saved[number]:
                raise SliceError(
                    "mlp_slices expects that an MLP saves the same tensors whenever it runs on a slice, and tensor "
                    f"{number + 1} of {len(self._saved)} was {self._saved[number]}, then {(tensor.shape, tensor.dtype)}; "
                    "set it to 1"
                )
            if len(restored) == len(self._saved):
                raise _AllRestored
            return number

        part = self._kept.part(self._first, self._length)
        with (
            contextlib.suppress(_AllRestored),
            torch.enable_grad(),
            torch.autocast(self._device, self._dtype, self._casts),
            torch.autograd.graph.saved_tensors_hooks(store, self._tensor_of),
        ):
            self._forward(part)
        if len(restored) != len(self._saved):
            raise SliceError(
                f"mlp_slices expects that an MLP saves the same tensors whenever it runs on a slice; it saved "
                f"{len(self._saved)}, then {len(restored)}; set it to 1"
            )
        return restored


@contextlib.contextmanager
def _marked() -> Iterator[None]:
    token = _RUNNING.set(True)
    try:
        yield
    finally:
        _RUNNING.reset(token)
