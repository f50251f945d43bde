"""What a rank's memory was made of at a moment: in which phase and module, and which kinds of tensors.

For a run under the profiler: it hears of each allocation, module and collective, at a cost that no timed run pays.
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
from shardtune.workers.rank.measure.allocator_history import Allocation, CpuHistory, CudaHistory, lives
from shardtune.workers.rank.strategies.base import Trainer

_MOST_HOLDERS = 8
_REST_OF_BUILDING = {"ddp": "buckets", "zero": "optimizer"}
"""What a backend makes beside the parameters before the first step; FSDP only buffers of the model."""


class PhaseMark(NamedTuple):
    """From here on this phase and module."""

    at: int
    phase: MemoryPhase
    module: str


class KnownStorage(NamedTuple):
    """A storage of which it is known what it is."""

    at: int
    pointer: int
    kind: str


class MomentRecorder:
    """Started before the model is built; `watch` it once it is wrapped, train some steps by `watched`, then `told`."""

    def __init__(
        self, rank: int, limit_bytes: int | None, backend: str, *, is_compiled: bool, is_cuda: bool = False
    ) -> None:
        self._rank, self._limit, self._backend, self._is_compiled = rank, limit_bytes, backend, is_compiled
        self._inside: list[str] = []
        self._phase: MemoryPhase = "building"
        self._marks = [PhaseMark(time.time_ns(), "building", "")]
        self._known: list[KnownStorage] = []
        self._hooks: list[RemovableHandle] = []
        self._history = CudaHistory() if is_cuda else CpuHistory()

    def watch_modules(self, model: nn.Module) -> None:
        """Hear of each module's forward and backward; before it is wrapped, so that names are the model's own."""
        if self._is_compiled:
            return  # A hook inside what is compiled would break its graph.
        for name, module in model.named_modules():
            self._hooks.append(module.register_forward_pre_hook(_entering(self, name)))
            self._hooks.append(module.register_forward_hook(_leaving(self, name)))

    def watch_states(self, model: nn.Module) -> None:
        """Know the parameters once they are in their place, and each gradient as it is made."""
        for parameter in model.parameters():
            self._note("parameters", (parameter, getattr(parameter, "ds_tensor", None)))
            if parameter.requires_grad:
                made = lambda one: self._note("gradients", (one.grad,))  # noqa: E731
                self._hooks.append(parameter.register_post_accumulate_grad_hook(made))  # type: ignore[no-untyped-call]

    def watched(self, trainer: Trainer) -> "WatchedTrainer":
        """A trainer that says in which phase it is."""
        return WatchedTrainer(trainer, self)

    def enter(self, phase: MemoryPhase, module: str = "") -> None:
        """Another phase, outside of every module."""
        self._phase, self._inside = phase, []
        self._mark(module)

    def enter_module(self, name: str) -> None:
        """A module's forward begins, also when it is computed again in the backward pass."""
        self._inside.append(name)
        self._mark(name)

    def leave_module(self, name: str, outputs: Iterable[torch.Tensor]) -> None:
        """It ended; its backward begins with the gradient of what it returned."""
        while self._inside and self._inside.pop() != name:
            pass  # Computing again ends early, without the inner ones' ends.
        self._mark(self._inside[-1] if self._inside else "")
        for output in outputs:
            if output.requires_grad:
                output.register_hook(lambda _: self.enter("backward", name))  # type: ignore[no-untyped-call]

    def collectives(self) -> AbstractContextManager[Any]:
        """Within it, buffers of collectives are known as such."""
        return nullcontext() if self._is_compiled else _Collectives(self)

    def note(self, kind: str, tensors: Iterable[Any]) -> None:
        """What these tensors are."""
        self._note(kind, tensors)

    def told(self) -> MemoryMoment | None:
        """End the recording; None where nothing was allocated, or too much happened to be kept."""
        for hook in self._hooks:
            hook.remove()
        events = self._history.stop()
        if not events:
            return None
        fullest = max(events, key=lambda one: one.total_bytes)
        limit = self._limit
        over = (one for one in events if limit is not None and one.total_bytes > limit)
        moment = next(over, fullest)
        at = moment.at
        live = [one for one in lives(events) if one.born <= at < one.died]
        kinds, holders = self._of(live)
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

    def _of(self, live: Sequence[Allocation]) -> tuple[Counter[str], Counter[str]]:
        kinds, holders = Counter[str](), Counter[str]()
        known: defaultdict[int, list[KnownStorage]] = defaultdict(list)
        for one in self._known:
            known[one.pointer].append(one)
        begins, ends = self._updates()
        for allocation in live:
            kind = self._kind(allocation, known, begins, ends)
            kinds[kind] += allocation.bytes
            if kind == "activations":
                holders[self._at(allocation.born).module] += allocation.bytes
        return kinds, holders

    def _kind(
        self, one: Allocation, known: Mapping[int, Sequence[KnownStorage]], begins: Sequence[int], ends: Sequence[int]
    ) -> str:
        """What was said of it in its life; else by where it was made and how long it lives."""
        said = [note.kind for note in known.get(one.pointer, ()) if one.born <= note.at < one.died]
        if said:
            # A gradient that is a view of a bucket is both, and stays when the bucket would have gone.
            return min(said, key=_PRECEDENCE.index)
        mark = self._at(one.born)
        if mark.phase == "building":
            return _REST_OF_BUILDING.get(self._backend, "parameters")
        if mark.phase == "optimizer":
            stays = any(one.born <= end < one.died for end in ends)
            return "optimizer" if stays else "other"
        if any(one.born <= begin < one.died for begin in begins):
            return "gradients"  # Copies of a backend's own, which outlive the backward pass.
        return "logits" if mark.module == "" or mark.module.endswith("lm_head") else "activations"

    def _updates(self) -> tuple[list[int], list[int]]:
        """When the optimizer began and ended, each time."""
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
        self._known += [KnownStorage(now, pointer, kind) for one in tensors for pointer in _pointers(one)]


_PRECEDENCE = ("parameters", "gradients", "optimizer", "gathered", "buckets")


class WatchedTrainer:
    """A trainer whose phases are told to a recorder."""

    def __init__(self, trainer: Trainer, recorder: MomentRecorder) -> None:
        self._trainer, self._recorder = trainer, recorder

    def micro_step(self, batch: Any, last: bool) -> torch.Tensor:
        """See `Trainer`."""
        self._recorder.enter("forward")
        with self._recorder.collectives():
            return self._trainer.micro_step(batch, last)

    def optimizer_step(self) -> torch.Tensor | float:
        """See `Trainer`."""
        self._recorder.enter("optimizer")
        with self._recorder.collectives():
            return self._trainer.optimizer_step()


class _Collectives(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees the tensors that collectives of torch, and FSDP2's copies around them, are called with."""

    def __init__(self, recorder: MomentRecorder) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._recorder = recorder

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Note what is handed over, and run it."""
        done = func(*args, **(kwargs or {}))
        if func.namespace in ("c10d", "fsdp", "_c10d_functional"):
            name = func.name()
            gathers = "gather" in name or "split_with_sizes" in name
            if "chunk_cat" in name:
                self._recorder.note("gradients", tree_leaves(args[0]))
            self._recorder.note("gathered" if gathers else "buckets", tree_leaves((args, kwargs, done)))
        return done


def _entering(recorder: MomentRecorder, name: str) -> Any:
    return lambda _module, _inputs: recorder.enter_module(name)


def _leaving(recorder: MomentRecorder, name: str) -> Any:
    def left(_module: nn.Module, _inputs: Any, output: Any) -> None:
        recorder.leave_module(name, (one for one in tree_leaves(output) if isinstance(one, torch.Tensor)))

    return left


def _pointers(tensor: Any) -> Iterator[int]:
    """Of the memory that lies under a tensor, on this rank. DTensors wrap theirs, and so do results that nobody waited for yet."""
    if not isinstance(tensor, torch.Tensor):
        return
    local = getattr(tensor, "_local_tensor", getattr(tensor, "elem", tensor))
    pointer = local.untyped_storage().data_ptr()
    if pointer:
        yield pointer
