"""What the allocator of a device did, event by event: on the CPU as torch's profiler records it, on a GPU from its own history."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch

from shardtune.workers.rank.measure.memory import Recording

_ENDLESS = 1 << 63
_MOST_EVENTS = 2_000_000
"""Of two steps; beyond, the oldest would be lost, and with them what is still held."""


class AllocatorEvent(NamedTuple):
    """A storage was taken or released."""

    at: int
    """Nanoseconds since 1970."""
    pointer: int
    bytes: int
    """Negative: released."""
    total_bytes: int
    """In use after it."""
    reserved_bytes: int | None = None
    """That the allocator held of the device, in use or not; None where it keeps nothing for itself."""


class Allocation(NamedTuple):
    """One storage over its life."""

    born: int
    died: int
    pointer: int
    bytes: int


class History(Protocol):
    """Recorded from its creation on."""

    def stop(self) -> list[AllocatorEvent]:
        """All of them in order; none where there were too many to keep."""


class CpuHistory:
    """Of all threads of the process."""

    def __init__(self) -> None:
        self._recording = Recording()

    def stop(self) -> list[AllocatorEvent]:
        """See `History`."""
        return [
            AllocatorEvent(one.start_time_ns, fields.ptr, fields.alloc_size, fields.total_allocated)
            for one in self._recording.stop()
            for fields in (one.extra_fields,)
        ]


class CudaHistory:
    """Of the current GPU. What was allocated before is in no event, so it begins before the model is built."""

    def __init__(self) -> None:
        self._before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
        # Without stacks: modules are told by hooks, and a stack for each of a step's allocations takes gigabytes.
        torch.cuda.memory._record_memory_history("all", context=None, max_entries=_MOST_EVENTS)

    def stop(self) -> list[AllocatorEvent]:
        """See `History`."""
        traces = torch.cuda.memory._snapshot()["device_traces"]
        torch.cuda.memory._record_memory_history(None)
        entries = traces[torch.cuda.current_device()]
        return [] if len(entries) >= _MOST_EVENTS else events_of(entries, *self._before)


def events_of(entries: Sequence[Mapping[str, Any]], allocated: int, reserved: int) -> list[AllocatorEvent]:
    """From torch's trace entries (`torch.cuda.memory._snapshot`), with the bytes that were there before the first.

    A block that another stream still uses is held until that is done.
    """
    found = []
    for one in entries:
        reserved += _SEGMENTS.get(one["action"], 0) * one["size"]
        sign = _BLOCKS.get(one["action"])
        if sign is None:
            continue
        allocated += sign * one["size"]
        at, pointer = 1000 * one["time_us"], one.get("addr", 0)
        found.append(AllocatorEvent(at, pointer, sign * one["size"], allocated, reserved))
    return found


_BLOCKS = {"alloc": 1, "free_completed": -1}
_SEGMENTS = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}


def lives(events: Iterable[AllocatorEvent]) -> list[Allocation]:
    """What was taken since the recording began; what was there before is nobody's."""
    begun: dict[int, AllocatorEvent] = {}
    ended = []
    for one in events:
        if one.bytes > 0:
            begun[one.pointer] = one
        elif (known := begun.pop(one.pointer, None)) is not None:
            ended.append(Allocation(known.at, one.at, one.pointer, known.bytes))
    return ended + [Allocation(one.at, _ENDLESS, one.pointer, one.bytes) for one in begun.values()]
