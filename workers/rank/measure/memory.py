"""Peak memory of one rank: the device's own counters, torch's profiler on the CPU."""

import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import torch
from torch.autograd.profiler import profile

from shardtune.api_schemas.base import GIB
from shardtune.api_schemas.measurements import Memory
from shardtune.workers.rank.device import Device


class MemoryMeter(Protocol):
    """Started before the model is built, so that model states count."""

    def end_of_profiled_steps(self) -> float | None:
        """Called once after the second step; returns the peak so far in GiB where it is known then."""

    def result(self) -> Memory:
        """The peak of the run, once it is over."""


def meter(device: Device) -> MemoryMeter:
    """The meter of this device, running."""
    return _CountedMeter(device) if device.count_from_here() else _ProfiledMeter()


class _ProfiledMeter:
    """Exact, but each operator is recorded, so it must end before anything is timed.

    The CPU has no caching allocator: what a step takes at its peak is the same in every later step.
    """

    def __init__(self) -> None:
        self._count_in_all_threads = _allocator_flag()
        self._count_in_all_threads.value = True
        self._profiler = profile(profile_memory=True)
        self._profiler.__enter__()  # type: ignore[no-untyped-call]
        self._peak: float | None = None

    def end_of_profiled_steps(self) -> float | None:
        """See `MemoryMeter`."""
        self._profiler.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        self._count_in_all_threads.value = False
        results: Any = self._profiler.kineto_results
        self._peak = max(_totals(results.experimental_event_tree()), default=0) / GIB
        del results, self._profiler
        return self._peak

    def result(self) -> Memory:
        """See `MemoryMeter`."""
        return Memory(peak_allocated_gib=self._peak)


def _totals(events: list[Any]) -> Iterator[int]:
    """Bytes in use after each allocation and release, "Total Allocated" in the profiler's words."""
    stack = list(events)
    while stack:
        event = stack.pop()
        stack += event.children
        if event.name == "[memory]":
            yield event.extra_fields.total_allocated


def _allocator_flag() -> ctypes.c_bool:
    """torch's switch that makes the CPU allocator count in every thread, not only in those that are profiled.

    Without it, what gloo's threads free is never taken off: FSDP2's peak came out up to half too high, at random.
    torch 2.13 offers no other access to it; a build that hides it gets a switch that does nothing.
    """
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    try:
        return ctypes.c_bool.in_dll(library, "FLAGS_caffe2_report_cpu_memory_usage")
    except ValueError:
        return ctypes.c_bool(False)


class _CountedMeter:
    """The device's allocator counts at no cost, so it goes on to the end."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def end_of_profiled_steps(self) -> float | None:
        """See `MemoryMeter`."""
        return None

    def result(self) -> Memory:
        """See `MemoryMeter`."""
        return self._device.counted() or Memory(peak_allocated_gib=None)
