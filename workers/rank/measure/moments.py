"""Composition of a rank's memory at its peak: in which phase and module it was, and which kinds of tensors it held.

Only for runs under the profiler: hooks on each allocation, module and collective cost time that no timed run may lose.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.hooks import RemovableHandle

from shardtune.api_schemas.trials.diagnosis import MemoryMoment, MemoryPhase
from shardtune.workers.rank.measure.allocator_history import Allocation, CpuHistory, CudaHistory, allocations_of
from shardtune.workers.rank.strategies.base import Trainer

_MOST_HOLDERS = 8
_REST_OF_BUILDING = {"ddp": "buckets", "zero": "optimizer"}
"""Kind of the tensors that a backend allocates before the first step and that are not parameters, by backend. FSDP
allocates only buffers then."""


class PhaseMark(NamedTuple):
    """Start of a phase of a step: its time, and the module that runs then."""

    at: int
    phase: MemoryPhase
    module: str


class KnownStorage(NamedTuple):
    """Storage whose kind (parameters, gradients or buffers of collectives) was recorded while it existed."""

    at: int
    pointer: int
    kind: str


_Notes = Mapping[int, Sequence[KnownStorage]]


class MomentRecorder:
    """Recorder of a rank's memory by phase, module and kind of tensor.

    Start the recorder before the model is built. Call `watch_modules` before the model is wrapped and `watch_states`
    after it, train with the trainer that `watched` returns, then call `finish`.
    """

    def __init__(
        self, rank: int, limit_bytes: int | None, backend: str, *, is_compiled: bool, is_cuda: bool = False
    ) -> None:
        self._rank, self._limit, self._backend, self._is_compiled = rank, limit_bytes, backend, is_compiled
        self._inside: list[str] = []
        self._phase: MemoryPhase = "building"
        self._marks = [PhaseMark(time.time_ns(), "building", "")]
        self._noted: list[KnownStorage] = []
        self._hooks: list[RemovableHandle] = []
        self._history = CudaHistory() if is_cuda else CpuHistory()

    def watch_modules(self, model: nn.Module) -> None:
        """Record when each module's forward and backward run; call this before wrapping, so that the recorded names are those
        of the plain model."""
        if self._is_compiled:
            return  # A hook inside what is compiled would break its graph.
        for name, module in model.named_modules():
            self._hooks.append(module.register_forward_pre_hook(_entering(self, name)))
            self._hooks.append(module.register_forward_hook(_leaving(self, name)))

    def watch_states(self, model: nn.Module) -> None:
        """Record the storages of the parameters once they are final, and of each gradient when it is created."""
        for parameter in model.parameters():
            self._note("parameters", (parameter, getattr(parameter, "ds_tensor", None)))
            if parameter.requires_grad:
                note_gradient = lambda leaf: self._note("gradients", (leaf.grad,))  # noqa: E731
                self._hooks.append(parameter.register_post_accumulate_grad_hook(note_gradient))  # type: ignore[no-untyped-call]

    def watched(self, trainer: Trainer) -> "WatchedTrainer":
        """Wrap a trainer so that it reports its phases to this recorder."""
        return WatchedTrainer(trainer, self)

    def enter(self, phase: MemoryPhase, module: str = "") -> None:
        """Record that a phase begins in which no module of the model runs."""
        self._phase, self._inside = phase, []
        self._mark(module)

    def enter_module(self, name: str) -> None:
        """Record that a module's forward begins, even if it runs during the backward pass in order to recompute
        activations."""
        self._inside.append(name)
        self._mark(name)

    def leave_module(self, name: str, outputs: Iterable[torch.Tensor]) -> None:
        """Record that a module's forward ends. The module's backward begins when the gradient of one of its outputs is
        known."""
        while self._inside and self._inside.pop() != name:
            pass  # A recomputation stops early, so that inner modules never report their end.
        self._mark(self._inside[-1] if self._inside else "")
        for output in outputs:
            if output.requires_grad:
                output.register_hook(lambda _: self.enter("backward", name))  # type: ignore[no-untyped-call]

    def collectives(self) -> AbstractContextManager[Any]:
        """Context in which the recorder notes which storages are buffers of collectives."""
        return nullcontext() if self._is_compiled else _Collectives(self)

    def note(self, kind: str, tensors: Iterable[Any]) -> None:
        """Record that the storages of the given tensors are of this kind."""
        self._note(kind, tensors)

    def finish(self) -> MemoryMoment | None:
        """End the recording and describe the memory at one moment: the first at which it exceeded the limit, else the
        peak.

        Returns None if nothing was allocated, or if there were too many events to record.
        """
        for hook in self._hooks:
            hook.remove()
        events = self._history.stop()
        if not events:
            return None
        fullest = max(events, key=lambda event: event.total_bytes)
        limit = self._limit
        over = (event for event in events if limit is not None and event.total_bytes > limit)
        moment = next(over, fullest)
        at = moment.at
        live = [allocation for allocation in allocations_of(events) if allocation.born <= at < allocation.died]
        kinds, holders = self._sizes_by_kind(live)
        mark = self._at(at)
        return MemoryMoment(
            rank=self._rank,
            bytes=moment.total_bytes,
            limit_bytes=limit,
            peak_bytes=fullest.total_bytes,
            reserved_bytes=moment.reserved_bytes,
            phase=mark.phase,
            module=mark.module,
            kinds=dict(kinds.most_common()),
            holders=dict(holders.most_common(_MOST_HOLDERS)),
        )

    def _sizes_by_kind(self, live: Sequence[Allocation]) -> tuple[Counter[str], Counter[str]]:
        kinds, holders = Counter[str](), Counter[str]()
        notes: defaultdict[int, list[KnownStorage]] = defaultdict(list)
        for storage in self._noted:
            notes[storage.pointer].append(storage)
        begins, ends = self._updates()
        for allocation in live:
            kind = self._kind(allocation, notes, begins, ends)
            kinds[kind] += allocation.bytes
            if kind == "activations":
                holders[self._at(allocation.born).module] += allocation.bytes
        return kinds, holders

    def _kind(self, allocation: Allocation, notes: _Notes, begins: Sequence[int], ends: Sequence[int]) -> str:
        """Kind of a storage: as recorded while the storage existed, else derived from its lifetime and from the phase
        in which it was allocated."""
        noted_kinds = [
            note.kind for note in notes.get(allocation.pointer, ()) if allocation.born <= note.at < allocation.died
        ]
        if noted_kinds:
            # A gradient that is a view of a bucket counts as a gradient: it outlives the bucket's own use.
            return min(noted_kinds, key=_PRECEDENCE.index)
        mark = self._at(allocation.born)
        if mark.phase == "building":
            return _REST_OF_BUILDING.get(self._backend, "parameters")
        if mark.phase == "optimizer":
            stays = any(allocation.born <= end < allocation.died for end in ends)
            return "optimizer" if stays else "other"
        if any(allocation.born <= begin < allocation.died for begin in begins):
            return "gradients"  # A backend's own copies, which outlive the backward pass.
        return "logits" if mark.module == "" or mark.module.endswith("lm_head") else "activations"

    def _updates(self) -> tuple[list[int], list[int]]:
        """Times at which the optimizer's steps began and ended."""
        pairs = list(zip(self._marks, self._marks[1:], strict=False))
        begins = [after.at for before, after in pairs if before.phase != "optimizer" == after.phase]
        ends = [after.at for before, after in pairs if before.phase == "optimizer" != after.phase]
        return begins, ends or [self._marks[-1].at]

    def _at(self, moment: int) -> PhaseMark:
        low, high = 0, len(self._marks)
        while low + 1 < high:
            middle = (low + high) // 2
            low, high = (middle, high) if self._marks[middle].at <= moment else (low, middle)
        return self._marks[low]

    def _mark(self, module: str) -> None:
        self._marks.append(PhaseMark(time.time_ns(), self._phase, module))

    def _note(self, kind: str, tensors: Iterable[Any]) -> None:
        now = time.time_ns()
        self._noted += [KnownStorage(now, pointer, kind) for tensor in tensors for pointer in _pointers(tensor)]


_PRECEDENCE = ("parameters", "gradients", "optimizer", "gathered", "buckets")
"""Order of precedence of the kinds: if several were recorded for one storage, the first in this order counts."""


class WatchedTrainer:
    """Trainer that reports its phases (forward, backward, optimizer) to a memory recorder."""

    def __init__(self, trainer: Trainer, recorder: MomentRecorder) -> None:
        self._trainer, self._recorder = trainer, recorder

    def begin_step(self, micro_batches: int) -> None:
        """Begin a step of this number of micro batches (see `Trainer.begin_step`)."""
        self._trainer.begin_step(micro_batches)

    def micro_step(self, batch: Any, last: bool) -> torch.Tensor:
        """Run forward and backward of one micro batch, as `Trainer.micro_step` describes; returns the mean loss."""
        self._recorder.enter("forward")
        with self._recorder.collectives():
            return self._trainer.micro_step(batch, last)

    def optimizer_step(self) -> torch.Tensor | float:
        """Clip and update at the end of a step, as `Trainer.optimizer_step` describes; returns the gradient norm."""
        self._recorder.enter("optimizer")
        with self._recorder.collectives():
            return self._trainer.optimizer_step()


class _Collectives(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Dispatch mode that records the buffers of torch's collectives, and those of the copies that FSDP2 makes before
    and after them."""

    def __init__(self, recorder: MomentRecorder) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._recorder = recorder

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operator and record its tensors if it is a collective."""
        output = func(*args, **(kwargs or {}))
        if func.namespace in ("c10d", "fsdp", "_c10d_functional"):
            name = func.name()
            gathers = "gather" in name or "split_with_sizes" in name
            if "chunk_cat" in name:
                self._recorder.note("gradients", tree_leaves(args[0]))
            self._recorder.note("gathered" if gathers else "buckets", tree_leaves((args, kwargs, output)))
        return output


def _entering(recorder: MomentRecorder, name: str) -> Any:
    return lambda _module, _inputs: recorder.enter_module(name)


def _leaving(recorder: MomentRecorder, name: str) -> Any:
    def leave(_module: nn.Module, _inputs: Any, output: Any) -> None:
        recorder.leave_module(name, (leaf for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor)))

    return leave


def _pointers(tensor: Any) -> Iterator[int]:
    """Memory addresses of a tensor on this rank. DTensors, and results of collectives that are not finished, only wrap
    the tensor that has the memory."""
    if not isinstance(tensor, torch.Tensor):
        return
    local = getattr(tensor, "_local_tensor", getattr(tensor, "elem", tensor))
    pointer = local.untyped_storage().data_ptr()
    if pointer:
        yield pointer
