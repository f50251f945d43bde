"""Inputs of checkpointed blocks in host memory, from a block's forward until its backward.

The offload is around the checkpoint, which then saves one tensor: the block's input. Inside of it, the offload would move
what the checkpoint drops, and the checkpoint would have no effect (torch 2.13, `checkpoint_wrapper`).
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from shardtune.workers.blocks.host_link import HostLink, link_of

_FIELD = "activation_offload (true)"


class OffloadError(Exception):
    """Exception for inputs of blocks that were not moved to host memory and back, though the configuration asks for
    it."""


class HostCopy:
    """Input of one block, kept in host memory as `copy`. While it is copied back, `on_device` is the new tensor on the
    device; after that, `copy` is None."""

    def __init__(self, copy: torch.Tensor) -> None:
        self.copy: torch.Tensor | None = copy
        self.on_device: torch.Tensor | None = None
        self.bytes = copy.numel() * copy.element_size()


class HostInputs:
    """Inputs of a model's checkpointed blocks that are in host memory.

    In forward, a block's input is copied to host memory while the block computes. In backward, while one block is recomputed,
    the input of the block that comes next is already copied back, so that the device holds two inputs.
    """

    def __init__(self, make_link: Callable[[torch.device], HostLink] = link_of) -> None:
        self.bytes_out = 0
        """Bytes copied to host memory so far."""
        self.bytes_back = 0
        """Bytes copied back to the device so far."""
        self._make_link = make_link
        self._link: HostLink | None = None
        self._waiting: list[HostCopy] = []

    def offload(self, block: nn.Module) -> None:
        """Keep the input of a block in host memory until the block's backward pass; the block's forward pass is
        checkpointed."""
        checkpointed = block.forward
        has_trained = any(parameter.requires_grad for parameter in block.parameters())

        @functools.wraps(checkpointed)
        def run(*args: Any, **kwargs: Any) -> Any:
            # Backward does not pass a frozen block behind a frozen input: nothing would come back.
            if not torch.is_grad_enabled() or not (has_trained or _needs_gradient(args)):
                return checkpointed(*args, **kwargs)
            with self._keeping_input(args):
                return checkpointed(*args, **kwargs)

        block.forward = run

    def check(self) -> None:
        """Check, at the end of a step, that all inputs moved to host memory came back to the device.

        Raises:
            OffloadError: no input was moved, or another number of bytes came back.
        """
        if self.bytes_out == 0:
            raise OffloadError(
                f"{_FIELD} moved no input of a checkpointed block to host memory: the step ran no block with gradients; set "
                "it to false"
            )
        if self.bytes_out != self.bytes_back:
            raise OffloadError(
                f"{_FIELD} moved {self.bytes_out:,} bytes to host memory, and {self.bytes_back:,} came back by the end of the "
                "step; set it to false"
            )

    @contextlib.contextmanager
    def _keeping_input(self, args: tuple[Any, ...]) -> Iterator[None]:
        """Context in which a block's checkpoint saves its input to host memory.

        Raises:
            OffloadError: the input is no tensor, the block changes it, or the checkpoint saves another tensor than this input.
        """
        if not args or not isinstance(args[0], torch.Tensor):
            raise OffloadError(
                f"{_FIELD} moves what a block takes as its first argument, which is no tensor here: call blocks as "
                "block(hidden_states, …), or set it to false"
            )
        if self._link is None:
            self._link = self._make_link(args[0].device)
        # Addresses, not tensors: torch keeps the hooks until backward, and would keep the tensors with them.
        moved, *left = [_address(arg) for arg in args if isinstance(arg, torch.Tensor)]
        saved, version = list[int](), args[0]._version

        def pack(tensor: torch.Tensor) -> Any:
            if tensor.numel() == 0:
                # The checkpoint of torch 2.11 saves an empty tensor beside its arguments.
                return tensor
            saved.append(_address(tensor))
            return self._to_host(tensor) if saved[-1] == moved else tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, self._from_host):
            yield
        if args[0]._version != version:
            # torch's own check of a saved tensor ends where hooks replace the tensor.
            raise OffloadError(
                f"{_FIELD} copies a block's input to the host while the block runs, and this block changes its input in place: "
                "its gradients would be wrong; let the block make a new tensor, or set it to false"
            )
        if saved.count(moved) != 1 or not {*saved} <= {moved, *left}:
            raise OffloadError(
                f"{_FIELD} expects that a checkpointed block saves its arguments alone, its input once; it saved {len(saved)} "
                "tensors, as if the checkpoint were outside of the offload and had no effect; set it to false"
            )
        self._link.wait_until_sent()

    def _to_host(self, tensor: torch.Tensor) -> HostCopy:
        assert self._link is not None
        host_copy = HostCopy(self._link.send(tensor))
        self.bytes_out += host_copy.bytes
        self._waiting.append(host_copy)
        return host_copy

    def _from_host(self, saved: Any) -> torch.Tensor:
        if not isinstance(saved, HostCopy):
            tensor: torch.Tensor = saved
            return tensor
        assert self._link is not None
        if saved.copy is None:
            raise OffloadError(
                f"{_FIELD} brings each input back once, and backward asked for one twice; set it to false"
            )
        self._begin_fetch(saved)
        self._link.wait_until_fetched()
        assert saved.on_device is not None
        on_device, saved.copy, saved.on_device = saved.on_device, None, None
        self.bytes_back += saved.bytes
        self._waiting.remove(saved)
        if self._waiting:
            # Backward takes the blocks in the opposite order.
            self._begin_fetch(self._waiting[-1])
        return on_device

    def _begin_fetch(self, host_copy: HostCopy) -> None:
        assert self._link is not None and host_copy.copy is not None
        if host_copy.on_device is None:
            host_copy.on_device = self._link.fetch(host_copy.copy)


def _needs_gradient(args: tuple[Any, ...]) -> bool:
    return any(isinstance(arg, torch.Tensor) and arg.requires_grad for arg in args)


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
