"""Copies of tensors to host memory and back: on streams of their own beside a GPU's computation, at once on the CPU."""

from collections import defaultdict
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray


class HostLink(Protocol):
    """Link between a rank's device and host memory. Each wait concerns the current stream, never the host."""

    def send(self, tensor: torch.Tensor) -> torch.Tensor:
        """Begin to copy a tensor into host memory; returns the copy."""

    def wait_until_sent(self) -> None:
        """Let later computation wait until everything sent is in host memory, so that its source may be freed."""

    def fetch(self, copy: torch.Tensor) -> torch.Tensor:
        """Begin to copy a tensor that was sent back to the device; returns the tensor there."""

    def wait_until_fetched(self) -> None:
        """Let later computation wait until everything fetched is on the device."""


class CudaLink:
    """Link of a GPU, with a stream for each direction and page-locked host memory.

    Tensors on the device are allocated and freed on the computation's stream, which waits for each copy before its
    tensor is freed. `record_stream` would keep them from reuse for as long as the host runs ahead.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._out, self._back = torch.cuda.Stream(device), torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def send(self, tensor: torch.Tensor) -> torch.Tensor:
        """Begin to copy a tensor into page-locked memory, once the computation before has made it."""
        # torch's allocator of page-locked memory keeps freed blocks for the next step.
        copy = torch.empty_like(tensor, device="cpu", pin_memory=True)
        self._out.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._out):
            copy.copy_(tensor, non_blocking=True)
        return copy

    def wait_until_sent(self) -> None:
        """Let later kernels of the current stream wait for all copies to the host."""
        torch.cuda.current_stream(self._device).wait_stream(self._out)

    def fetch(self, copy: torch.Tensor) -> torch.Tensor:
        """Begin to copy a tensor back, while the computation goes on."""
        tensor = torch.empty_like(copy, device=self._device)
        # Kernels queued before may still use the memory that the allocator has handed out again.
        self._back.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._back):
            tensor.copy_(copy, non_blocking=True)
        return tensor

    def wait_until_fetched(self) -> None:
        """Let later kernels of the current stream wait for all copies from the host."""
        torch.cuda.current_stream(self._device).wait_stream(self._back)


class CpuLink:
    """Link of a CPU rank, whose device is the host: numpy's memory stands for host memory.

    torch's allocator, and so the meter of a trial's peak, does not count numpy's memory: the peak is that of a device.
    """

    def __init__(self) -> None:
        self._free: defaultdict[int, list[NDArray[np.uint8]]] = defaultdict(list)

    def send(self, tensor: torch.Tensor) -> torch.Tensor:
        """Copy a tensor into memory of numpy."""
        size = tensor.numel() * tensor.element_size()
        # Kept buffers spare the page faults of new memory, as the allocator of page-locked memory does.
        buffer = self._free[size].pop() if self._free[size] else np.empty(size, dtype=np.uint8)
        copy = torch.from_numpy(buffer).view(tensor.dtype).view(tensor.shape)
        return copy.copy_(tensor)

    def wait_until_sent(self) -> None: ...

    def fetch(self, copy: torch.Tensor) -> torch.Tensor:
        """Copy a tensor back into memory of torch; the buffer is free for the next tensor of its size."""
        tensor = copy.clone()
        buffer = copy.view(-1).view(torch.uint8).numpy()
        self._free[buffer.size].append(buffer)
        return tensor

    def wait_until_fetched(self) -> None: ...


def link_of(device: torch.device) -> HostLink:
    """Link of a device with host memory."""
    return CudaLink(device) if device.type == "cuda" else CpuLink()
