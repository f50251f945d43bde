"""Recorder of one training step: bytes that are alive, FLOPs, memory traffic and operators, by part of the step.

Tensors without values (torch's fake tensors) have storages like others, and torch frees them at the same moments.
"""

import contextlib
import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from shardtune.workers.blocks.checkpointing import SAVED_OPERATORS
from shardtune.workers.rank.own_code import work_space

Part = Literal["outside", "blocks", "backward"]
_ATTENTION = ("flash_attention", "efficient_attention", "cudnn_attention", "fused_attention")
_NO_WORK = ("aten.detach", "aten._unsafe_view", "aten.alias", "aten.lift_fresh")


@dataclass
class StepCounts:
    """Counts of FLOPs, memory traffic and kernels in one part of a step."""

    matmul_flops: float = 0.0
    attention_flops: float = 0.0
    traffic: float = 0.0
    kernels: float = 0.0


@dataclass
class _Storages:
    """Storages that are in use, by address, with their sizes in bytes."""

    sizes: dict[int, int] = field(default_factory=dict)
    ignored: set[int] = field(default_factory=set)


class StepRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Dispatch mode that counts the memory and the work of operators. The memory of the given tensors (weights and
    buffers) does not count."""

    def __init__(self, weights: Iterable[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.part: Part = "outside"
        self.work: dict[Part, StepCounts] = {"outside": StepCounts(), "blocks": StepCounts(), "backward": StepCounts()}
        self.live = 0
        """Bytes alive now, without weights and gradients of weights."""
        self.gradients = 0
        """Bytes of gradients of weights."""
        self.peak = 0
        """Peak so far of the sum of live bytes and bytes of gradients of weights."""
        self.selective = 0
        """Bytes of those results within blocks that selective checkpointing would keep."""
        self._interval_peak = 0
        self._storages = _Storages()
        self._weights = {_address(tensor) for tensor in weights}
        self._storages.ignored |= self._weights

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator, and count its results and its work."""
        kwargs = kwargs or {}
        before = self.live
        results = func(*args, **kwargs)
        inputs = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        outputs = [leaf for leaf in tree_leaves(results) if isinstance(leaf, torch.Tensor)]
        if _is_cast(func) and inputs and _address(inputs[0]) in self._weights:
            # Autocast's copy of a weight: predictions know these copies by backend.
            self._ignore(outputs)
        created = self._count_storages(outputs)
        self._note_peak(before + work_space.of_operator(func, args, outputs))
        if func in SAVED_OPERATORS and self.part == "blocks":
            self.selective += created
        self._count_work(func, inputs, outputs, lambda count: count(*args, **kwargs, out_val=results))
        return results

    def add(self, tensors: Iterable[torch.Tensor]) -> None:
        """Count tensors that exist before the step, such as those of a batch."""
        self._count_storages(tensors)

    def mark_gradient(self, gradient: torch.Tensor) -> None:
        """Count a tensor from now on as the gradient of a weight, and no longer among the other live bytes."""
        address = _address(gradient)
        size = self._storages.sizes.pop(address, None)
        if size is not None:
            self.live -= size
            self.gradients += size
            self._storages.ignored.add(address)

    def end_interval(self) -> int:
        """Return the peak of live bytes since the last call, without gradients of weights."""
        peak, self._interval_peak = self._interval_peak, self.live
        return peak

    def _count_storages(self, tensors: Iterable[torch.Tensor]) -> int:
        created = 0
        for tensor in tensors:
            with contextlib.suppress(NotImplementedError, RuntimeError):
                created += self._count_storage(tensor)
        self._note_peak(self.live)
        return created

    def _note_peak(self, live: int) -> None:
        self.peak = max(self.peak, live + self.gradients)
        self._interval_peak = max(self._interval_peak, live)

    def _ignore(self, tensors: Iterable[torch.Tensor]) -> None:
        for tensor in tensors:
            storage = tensor.untyped_storage()
            self._storages.ignored.add(storage._cdata)
            # Another storage may get the address later.
            weakref.finalize(storage, self._storages.ignored.discard, storage._cdata)

    def _count_storage(self, tensor: torch.Tensor) -> int:
        storage = tensor.untyped_storage()
        address, size = storage._cdata, int(storage.nbytes())
        if address in self._storages.sizes or address in self._storages.ignored:
            return 0
        self._storages.sizes[address] = size
        self.live += size
        weakref.finalize(storage, self._free, address)
        return size

    def _free(self, address: int) -> None:
        self.live -= self._storages.sizes.pop(address, 0)
        # Another storage may get the address of a freed gradient.
        self._storages.ignored -= {address} - self._weights

    def _count_work(self, func: Any, inputs: list[torch.Tensor], outputs: list[torch.Tensor], call: Any) -> None:
        if func.is_view or str(func.overloadpacket) in _NO_WORK or not outputs:
            return
        work = self.work[self.part]
        work.kernels += 1
        flops, is_attention = _flops(func, inputs, call)
        if is_attention:
            work.attention_flops += flops
        elif flops:
            work.matmul_flops += flops
        else:
            work.traffic += sum(tensor.numel() * tensor.element_size() for tensor in (*inputs, *outputs))


def _flops(func: Any, inputs: list[torch.Tensor], call: Any) -> tuple[float, bool]:
    """FLOPs of one operator, and whether it is a fused attention operator."""
    packet, name = func.overloadpacket, str(func.overloadpacket)
    if any(kernel in name for kernel in _ATTENTION) and len(inputs) >= 3:
        # torch 2.13 counts the kernels of GPUs alone. A backward's first input is the gradient of the output.
        if "backward" in name:
            gradient, query, *others = (tensor.shape for tensor in inputs[:4])
            key, value = (_repeated(shape, query) for shape in others)
            return float(sdpa_backward_flop_count(gradient, query, key, value)), True  # type: ignore[no-untyped-call]
        query, *others = (tensor.shape for tensor in inputs[:3])
        key, value = (_repeated(shape, query) for shape in others)
        return float(sdpa_flop_count(query, key, value)), True  # type: ignore[no-untyped-call]
    if name == "aten._grouped_mm":
        rows, weights = inputs[0], inputs[1]
        return 2.0 * rows.numel() * weights.shape[-1], False
    if packet in flop_registry:
        return float(call(flop_registry[packet])), False
    return 0.0, False


def _repeated(shape: torch.Size, query: torch.Size) -> torch.Size:
    """Shape of keys or values with as many heads as the query has, which the kernel repeats; torch 2.11 counts no
    other."""
    return torch.Size((shape[0], query[1], *shape[2:]))


def _is_cast(func: Any) -> bool:
    return str(func.overloadpacket) == "aten._to_copy"


def _address(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
