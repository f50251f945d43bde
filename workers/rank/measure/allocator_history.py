"""Allocator events of a device in order: on the CPU as torch's profiler records them, on a GPU from its allocator's history."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from shardtune.workers.rank.measure.memory import Recording

_ENDLESS = 1 << 63
"""Time of release that stands for a storage that was never released."""
_MOST_EVENTS = 2_000_000
"""Maximum number of recorded allocator events, enough for two steps. If there are more, torch drops the oldest, and so
loses the allocation of storages that are still in use."""


class AllocatorEvent(NamedTuple):
    """Allocation or release of a piece of memory (a storage), as torch's allocator reported it."""

    at: int
    """Time of the event in nanoseconds since 1970."""
    pointer: int
    """Address of the storage."""
    bytes: int
    """Size of the storage; negative for a release."""
    total_bytes: int
    """Number of bytes in use right after the event."""
    reserved_bytes: int | None = None
    """Number of bytes that the allocator had reserved on the device, whether in use or not; None for an allocator that
    caches nothing."""


class Allocation(NamedTuple):
    """Lifetime of a storage, from allocation to release, in nanoseconds since 1970."""

    born: int
    died: int
    pointer: int
    bytes: int


class CpuHistory:
    """Recorder of CPU allocations in all threads of the process."""

    def __init__(self) -> None:
        self._recording = Recording()

    def stop(self) -> list[AllocatorEvent]:
        """Stop recording; returns all CPU allocator events in order, or none if there were too many to keep."""
        return [
            AllocatorEvent(record.start_time_ns, fields.ptr, fields.alloc_size, fields.total_allocated)
            for record in self._recording.stop()
            for fields in (record.extra_fields,)
        ]


class CudaHistory:
    """Recorder of the current GPU's allocations. Start it before the model is built: earlier allocations are not recorded."""

    def __init__(self) -> None:
        self._before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
        # Without stacks: hooks report the modules, and a stack for each of a step's allocations takes gigabytes.
        torch.cuda.memory._record_memory_history("all", context=None, max_entries=_MOST_EVENTS)

    def stop(self) -> list[AllocatorEvent]:
        """Stop recording; returns all GPU allocator events in order, or none if there were too many to keep."""
        traces = torch.cuda.memory._snapshot()["device_traces"]
        torch.cuda.memory._record_memory_history(None)
        entries = traces[torch.cuda.current_device()]
        return [] if len(entries) >= _MOST_EVENTS else events_of(entries, *self._before)


def events_of(entries: Sequence[Mapping[str, Any]], allocated: int, reserved: int) -> list[AllocatorEvent]:
    """Convert torch's trace entries (`torch.cuda.memory._snapshot`) into allocator events. `allocated` and `reserved`
    are the numbers of bytes allocated and reserved before the first entry."""
    events = []
    for entry in entries:
        reserved += _SEGMENTS.get(entry["action"], 0) * entry["size"]
        sign = _BLOCKS.get(entry["action"])
        if sign is None:
            continue
        allocated += sign * entry["size"]
        at, pointer = 1000 * entry["time_us"], entry.get("addr", 0)
        events.append(AllocatorEvent(at, pointer, sign * entry["size"], allocated, reserved))
    return events


# `free_completed`, not `free_requested`: memory that another stream still uses is held until that stream is done.
_BLOCKS = {"alloc": 1, "free_completed": -1}
_SEGMENTS = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}


def allocations_of(events: Iterable[AllocatorEvent]) -> list[Allocation]:
    """Allocations since the recording began, each with its time of release; releases of earlier allocations are
    ignored."""
    begun: dict[int, AllocatorEvent] = {}
    ended = []
    for event in events:
        if event.bytes > 0:
            begun[event.pointer] = event
        elif (birth := begun.pop(event.pointer, None)) is not None:
            ended.append(Allocation(birth.at, event.at, event.pointer, birth.bytes))
    return ended + [Allocation(event.at, _ENDLESS, event.pointer, event.bytes) for event in begun.values()]
