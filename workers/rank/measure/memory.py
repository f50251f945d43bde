"""Peak memory of one rank: from the device's own counters, or from the allocations that torch's profiler records on the CPU."""

import ctypes
from pathlib import Path
from typing import Any, Protocol

import torch
from torch._C._autograd import _disable_profiler, _enable_profiler, _prepare_profiler
from torch._C._profiler import ProfilerActivity, ProfilerConfig, ProfilerState, RecordScope, _ExperimentalConfig

from shardtune.api_schemas.base import GIB
from shardtune.api_schemas.trials.measurements import Memory
from shardtune.workers.rank.device import Device


class MemoryMeter(Protocol):
    """Meter of a rank's peak memory. It is started before the model is built, so that weights and optimizer state
    count."""

    def end_of_profiled_steps(self) -> float | None:
        """Notify the meter that the second step has ended. Returns the peak so far in GiB, or None if this meter knows
        it only at the end of the run."""

    def result(self) -> Memory:
        """Memory peaks of the run, once the run is over."""


def start_meter(device: Device) -> MemoryMeter:
    """Start the memory meter that suits this device."""
    return _CountedMeter(device) if device.reset_peaks() else _RecordedMeter()


class Recording:
    """Recorder of all allocations and releases of CPU memory in all threads, from its creation on."""

    def __init__(self) -> None:
        self._count_in_all_threads = _allocator_flag()
        self._count_in_all_threads.value = True
        config = ProfilerConfig(
            ProfilerState.KINETO,
            report_input_shapes=False,
            profile_memory=True,
            with_stack=False,
            with_flops=False,
            with_modules=False,
            experimental_config=_ExperimentalConfig(),
        )
        activities = {ProfilerActivity.CPU}
        _prepare_profiler(config, activities)
        # `torch.profiler` has no switch for the operators, whose records cost ten times the memory's: a third of the
        # processor time of a short run. So the scope is one that no operator of a training step has.
        _enable_profiler(config, activities, scopes={RecordScope.STATIC_RUNTIME_MODEL})  # type: ignore[call-arg]

    def stop(self) -> list[Any]:
        """Stop recording; returns torch's records in order.

        A record has `start_time_ns`, and `extra_fields` with `ptr`, `alloc_size` (negative: released) and
        `total_allocated`, the bytes in use after it.
        """
        records: list[Any] = _disable_profiler().experimental_event_tree()
        self._count_in_all_threads.value = False
        return [record for record in records if record.name == "[memory]"]


class _RecordedMeter:
    """Memory meter for the CPU. It is exact, but it records each allocation and so must end before anything is timed.

    It needs only two steps: the CPU has no caching allocator, so that every later step has the same peak.
    """

    def __init__(self) -> None:
        self._recording = Recording()
        self._peak: float | None = None

    def end_of_profiled_steps(self) -> float | None:
        """Stop recording after the second step; returns the peak in GiB."""
        in_use = (record.extra_fields.total_allocated for record in self._recording.stop())
        self._peak = max(in_use, default=0) / GIB
        return self._peak

    def result(self) -> Memory:
        """Memory peaks of the first two steps on the CPU."""
        return Memory(peak_allocated_gib=self._peak)


def _allocator_flag() -> ctypes.c_bool:
    """torch's global switch that makes the CPU allocator report allocations of every thread, not only of profiled
    threads."""
    # Without it, memory that gloo's threads free is never subtracted: FSDP2's peak came out up to half too high, at
    # random. torch 2.13 offers no other access; for a build that hides the symbol, the switch does nothing.
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    try:
        return ctypes.c_bool.in_dll(library, "FLAGS_caffe2_report_cpu_memory_usage")
    except ValueError:
        return ctypes.c_bool(False)


class _CountedMeter:
    """Memory meter for a device whose allocator keeps counters anyway, so that it can count until the end of the run at
    no cost."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def end_of_profiled_steps(self) -> float | None:
        """Do nothing and return None: the peak is known at the end of the run."""
        return None

    def result(self) -> Memory:
        """Memory peaks of the whole run, from the device's counters."""
        return self._device.memory_peaks() or Memory(peak_allocated_gib=None)
