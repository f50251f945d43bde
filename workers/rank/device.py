"""Device of a rank, except for its computations (allocator, clock, core binding): the only module of the measuring code
that uses `torch.cuda`."""

import contextlib
import inspect
import time
from collections.abc import Callable
from typing import Any, Literal, Protocol

import torch
from torch.numa import binding

from shardtune.api_schemas.base import GIB
from shardtune.api_schemas.strategies import NumaBinding
from shardtune.api_schemas.trials.measurements import Memory

DeviceKind = Literal["cuda", "cpu"]


class Device(Protocol):
    """Device of one rank."""

    @property
    def tensors(self) -> torch.device:
        """`torch.device` on which the rank's tensors are placed."""

    def use(self) -> None:
        """Make this device the process's current one; call it before any tensor is on the device."""

    def synchronize(self) -> None:
        """Wait until all work queued on the device is done."""

    def is_busy(self) -> bool:
        """Whether the device still has queued work."""

    def configure_allocator(self, settings: str) -> None:
        """Configure the device's memory allocator with options in the syntax of PYTORCH_ALLOC_CONF. Call it before the
        first allocation."""

    def bind(self, mode: NumaBinding) -> None:
        """Bind this process to cores near the device.

        Raises:
            RuntimeError: numactl is missing, or there are too few cores.
        """

    def release_cache(self) -> None:
        """Return cached, unused memory of the allocator to the device."""

    def reset_peaks(self) -> bool:
        """Reset the counters of peak memory; returns false if the device has no such counters."""

    def memory_peaks(self) -> Memory | None:
        """Peak memory figures since the last reset; None if the device has no counters."""

    def free_bytes(self) -> int | None:
        """Free bytes of the whole device, after the use of all processes; None on the CPU."""

    def random_state(self) -> torch.Tensor | None:
        """State of the device's own random number generator; None if it has none."""

    def set_random_state(self, state: torch.Tensor) -> None:
        """Set the device's random number generator to a state that `random_state` returned."""

    def materializing(self) -> contextlib.AbstractContextManager[object]:
        """Context in which a trainer allocates parameters on this device and gives them their initial values."""


class CpuDevice:
    """CPU as a rank's device. It computes synchronously, has no memory counters and draws random numbers from torch's
    own generator."""

    tensors = torch.device("cpu")

    def use(self) -> None: ...

    def synchronize(self) -> None: ...

    def is_busy(self) -> bool:
        return False

    def configure_allocator(self, settings: str) -> None: ...

    def bind(self, mode: NumaBinding) -> None: ...

    def release_cache(self) -> None: ...

    def reset_peaks(self) -> bool:
        return False

    def memory_peaks(self) -> Memory | None:
        return None

    def free_bytes(self) -> int | None:
        return None

    def random_state(self) -> torch.Tensor | None:
        return None

    def set_random_state(self, state: torch.Tensor) -> None: ...

    def materializing(self) -> contextlib.AbstractContextManager[object]:
        return contextlib.nullcontext()


class CudaDevice:
    """GPU as a rank's device, given by its index among the visible GPUs."""

    def __init__(self, index: int) -> None:
        self.tensors = torch.device("cuda", index)

    def use(self) -> None:
        torch.cuda.set_device(self.tensors)

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.tensors)

    def is_busy(self) -> bool:
        """Whether the current stream has unfinished work."""
        # Asking for a stream would initialise CUDA in a process that has touched no GPU.
        return torch.cuda.is_initialized() and not torch.cuda.current_stream().query()  # type: ignore[no-untyped-call]

    def configure_allocator(self, settings: str) -> None:
        torch._C._accelerator_setAllocatorSettings(settings)

    def bind(self, mode: NumaBinding) -> None:
        """Bind this process to cores near the GPU with the function that torchrun uses (torch 2.13), so that trials and
        an exported job that torchrun starts get the same cores."""
        options = binding.NumaOptions(affinity_mode=binding.AffinityMode(mode))
        bind_process: Any = binding._maybe_apply_numa_binding_to_current_process
        bind_process(**{index_argument(bind_process): self.tensors.index, "numa_options": options})

    def release_cache(self) -> None:
        torch.cuda.empty_cache()

    def reset_peaks(self) -> bool:
        """Reset the peak counters of CUDA's caching allocator. PyTorch keeps these counters anyway, so that using them
        costs nothing."""
        torch.cuda.reset_peak_memory_stats(self.tensors)
        return True

    def memory_peaks(self) -> Memory | None:
        """Peak memory figures that CUDA's caching allocator has counted."""
        stats = torch.cuda.memory_stats(self.tensors)
        free, total = torch.cuda.mem_get_info(self.tensors)
        most_reserved = torch.cuda.max_memory_reserved(self.tensors)
        return Memory(
            peak_allocated_gib=torch.cuda.max_memory_allocated(self.tensors) / GIB,
            peak_reserved_gib=most_reserved / GIB,
            device_used_gib=device_peak_gib(total - free, torch.cuda.memory_reserved(self.tensors), most_reserved),
            allocator_retries=int(stats.get("num_alloc_retries", 0)),
            allocator_ooms=int(stats.get("num_ooms", 0)),
        )

    def free_bytes(self) -> int | None:
        """Free bytes of the GPU; None if this process has not used the GPU yet."""
        return torch.cuda.mem_get_info(self.tensors)[0] if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]

    def random_state(self) -> torch.Tensor | None:
        return torch.cuda.get_rng_state(self.tensors)

    def set_random_state(self, state: torch.Tensor) -> None:
        torch.cuda.set_rng_state(state, self.tensors)

    def materializing(self) -> contextlib.AbstractContextManager[object]:
        return contextlib.nullcontext()


def of_kind(kind: DeviceKind, index: int) -> Device:
    """Device of a kind (CPU or GPU) and an index; the index is ignored for a CPU."""
    return CudaDevice(index) if kind == "cuda" else CpuDevice()


def index_argument(bind_process: Callable[..., object]) -> str:
    """Name of the argument with which torch's function for binding a process to cores takes the index of the device."""
    # torch 2.14 renamed `gpu_index` to `device_index`; both are keywords only.
    parameters = inspect.signature(bind_process).parameters
    return "device_index" if "device_index" in parameters else "gpu_index"


def clock(device: Device) -> float:
    """Seconds on a monotonic clock, read after all work queued on this rank's device is done."""
    device.synchronize()
    return time.perf_counter()


def device_peak_gib(used: int, reserved: int, most_reserved: int) -> float:
    """Peak GiB that a program held on the device. It is the bytes in use on the device now, plus the bytes that
    PyTorch's allocator has returned to the device since the moment when it had reserved most."""
    # The allocator returns memory only when a request did not fit (`num_alloc_retries`), and then all it can spare.
    return (used - reserved + most_reserved) / GIB
