"""Copies of tensors to host memory and back: on streams of their own beside a GPU's computation, at once on the CPU."""

from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch


class HostLink(Protocol):
    """Link that copies tensors between a rank's device and host memory. When it waits, the device's current stream
    waits, and never the calling thread."""

    def send(self, tensor: torch.Tensor) -> torch.Tensor:
        """Begin to copy a tensor into host memory; returns the copy."""

    def wait_until_sent(self) -> None:
        """Make later computation wait until all copies to host memory are complete, so that the tensors on the device may be
        freed."""

    def fetch(self, copy: torch.Tensor) -> torch.Tensor:
        """Begin to copy a tensor from host memory back to the device; returns the tensor on the device."""

    def wait_until_fetched(self) -> None:
        """Make later computation wait until all copies back to the device are complete."""


class HostBuffers:
    """Buffers in host memory for copies of tensors. All buffers are as large as the largest tensor so far.

    Batches of different sequence lengths share the buffers. torch's own allocator would not share them: it sorts free
    buffers by powers of two, and would add one buffer for each block and each power that occurs.
    """

    def __init__(self, allocate: Callable[[int], torch.UntypedStorage], release: Callable[[], None]) -> None:
        self._allocate, self._release = allocate, release
        self._free: list[torch.UntypedStorage] = []
        self._bytes = 0

    def like(self, tensor: torch.Tensor) -> torch.Tensor:
        """Uninitialised tensor in one of the buffers, with the shape and dtype of the given tensor, and with its
        strides if it is dense."""
        size = tensor.numel() * tensor.element_size()
        if size > self._bytes:
            # As the allocator of page-locked memory rounds, so that slightly longer rows need no new buffers.
            self._bytes = 1 << (size - 1).bit_length()
            self._free.clear()
            self._release()
        storage = self._free.pop() if self._free else self._allocate(self._bytes)
        strides = torch.empty_like(tensor, device="meta").stride()
        return torch.empty(0, dtype=tensor.dtype).set_(storage, 0, tensor.shape, strides)

    def free(self, copy: torch.Tensor) -> None:
        """Take back the buffer of a tensor, so that later tensors can use it. The tensor's bytes may be overwritten at
        once."""
        storage = copy.untyped_storage()
        if storage.nbytes() == self._bytes:
            self._free.append(storage)


class CudaLink:
    """Link between a GPU and page-locked host memory, with one stream for each direction.

    Tensors on the device are allocated and freed on the computation's stream, which waits for a tensor's copy before it
    frees the tensor. With `record_stream` instead, their memory could not be used again for as long as the host runs
    ahead of the device.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._out, self._back = torch.cuda.Stream(device), torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._buffers = HostBuffers(_page_locked, _release_page_locked)
        self._fetched: list[torch.Tensor] = []

    def send(self, tensor: torch.Tensor) -> torch.Tensor:
        """Begin to copy a tensor into page-locked memory, as soon as the work that is queued on the current stream has
        computed it."""
        copy = self._buffers.like(tensor)
        self._out.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._out):
            copy.copy_(tensor, non_blocking=True)
        return copy

    def wait_until_sent(self) -> None:
        """Make later kernels of the current stream wait for all copies to the host."""
        torch.cuda.current_stream(self._device).wait_stream(self._out)

    def fetch(self, copy: torch.Tensor) -> torch.Tensor:
        """Begin to copy a tensor back, while the computation goes on."""
        tensor = torch.empty_like(copy, device=self._device)
        # Kernels queued before may still use the memory that the allocator has handed out again.
        self._back.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._back):
            tensor.copy_(copy, non_blocking=True)
        self._fetched.append(copy)
        return tensor

    def wait_until_fetched(self) -> None:
        """Make later kernels of the current stream wait for all copies from the host."""
        torch.cuda.current_stream(self._device).wait_stream(self._back)
        # The next tensor sent comes after this wait, and so overwrites a buffer only once it has been read.
        while self._fetched:
            self._buffers.free(self._fetched.pop())


class CpuLink:
    """Link of a CPU rank, which has no device besides the host. Memory that numpy allocates stands for host memory.

    A trial's peak memory counts what torch allocates, and not what numpy allocates. Offloading therefore lowers the
    peak, as on a GPU.
    """

    def __init__(self) -> None:
        # Kept buffers spare the page faults of new memory.
        self._buffers = HostBuffers(_of_numpy, lambda: None)

    def send(self, tensor: torch.Tensor) -> torch.Tensor:
        """Copy a tensor into memory that numpy allocated."""
        return self._buffers.like(tensor).copy_(tensor)

    def wait_until_sent(self) -> None: ...

    def fetch(self, copy: torch.Tensor) -> torch.Tensor:
        """Copy a tensor back into memory that torch allocates; its buffer is then free for the next tensor."""
        tensor = copy.clone()
        self._buffers.free(copy)
        return tensor

    def wait_until_fetched(self) -> None: ...


def link_of(device: torch.device) -> HostLink:
    """Return the link between a device and host memory that suits the device."""
    return CudaLink(device) if device.type == "cuda" else CpuLink()


def _page_locked(size: int) -> torch.UntypedStorage:
    return torch.empty(size, dtype=torch.uint8, pin_memory=True).untyped_storage()


def _release_page_locked() -> None:
    """Return the page-locked memory that torch caches and nobody uses to the system."""
    release: Callable[[], None] | None = getattr(torch.accelerator, "empty_host_cache", None)
    # torch 2.11, which workers may have, has it by a private name only.
    (release or vars(torch._C)["_host_emptyCache"])()


def _of_numpy(size: int) -> torch.UntypedStorage:
    return torch.from_numpy(np.empty(size, dtype=np.uint8)).untyped_storage()
