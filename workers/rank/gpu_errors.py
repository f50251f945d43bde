"""Recognition of errors of the GPU, of CUDA's libraries and of NCCL: a fault of the device, a lack of its memory, or a lack
of shared memory between ranks.

Text decides where torch has no type for a CUDA library's status: a status is a name that does not change with wording.
"""

import errno
import shutil

import torch
import torch.distributed as dist

from shardtune.api_schemas.base import GIB
from shardtune.api_schemas.formatting import memory
from shardtune.workers.rank.device import Device

_CUDA_ERROR_MEMORY_ALLOCATION = 2
_EXHAUSTED_BYTES = 512 << 20
"""Number of free bytes on the GPU below which a failed call of NCCL, or a failed start of a CUDA library, is classified as
out of memory. They allocate memory outside of torch and need not report the reason."""
_NCCL_EXHAUSTED = "'out of memory'"
"""Text of the CUDA runtime in NCCL's last error, such as `Cuda failure 2 'out of memory'`, which torch adds to its own
message if NCCL has one."""

_SHARED_MEMORY = "/dev/shm"  # nosec B108 # Its size is read, and NCCL's errors name it: no file is made.
_NCCL_SHARED_MEMORY = f"{_SHARED_MEMORY}/nccl-"
"""Beginning of the names of NCCL's files in shared memory, which its last error names."""
_NO_SPACE = f"({errno.ENOSPC})"
"""Number with which such an error ends if the file had no room. Others name the file, too: a peer that has ended took it
along, or CUDA could not pin it, as on a full device."""
_DEVICE_ERRORS = {
    46: "CUDA-capable device(s) is/are busy or unavailable",
    100: "no CUDA-capable device is detected",
    214: "uncorrectable ECC error encountered",
    220: "uncorrectable NVLink error detected during the execution",
    802: "system not yet initialized",
}
"""Errors of the CUDA runtime that no program causes: code (`driver_types.h` of CUDA 13) and text (`cudaGetErrorString`). The
text decides for what torch raises without a code, such as NCCL's last error or a failed start of CUDA."""

_UNAVAILABLE = 46
"""Code of `cudaErrorDevicesUnavailable`, for which CUDA's documentation names several causes."""
UNAVAILABLE_REMEDY = (
    "CUDA calls the GPU busy or unavailable (error 46). Another process may have it in exclusive mode, or the mode may prohibit "
    "all use: `nvidia-smi -q -d COMPUTE` shows the mode, and `nvidia-smi -c 0` sets the default one. Or another process fills the "
    "GPU with kernels or its memory: `nvidia-smi` lists the processes; end them, or choose other GPUs with CUDA_VISIBLE_DEVICES"
)

_LIBRARY_EXHAUSTED = (
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "CUSOLVER_STATUS_ALLOC_FAILED",
    # Mapping a segment that grows (torch 2.13, `C10_CUDA_DRIVER_CHECK`), and loading a compiled kernel.
    "CUDA driver error: out of memory",
    "Triton Error [CUDA]: out of memory",
)
"""Texts with which cuBLAS, cuDNN, cuSOLVER, the CUDA driver and Triton report a lack of memory, for which torch raises
only a plain RuntimeError. The libraries allocate workspaces at their first call."""
_LIBRARY_NOT_STARTED = (
    "CUBLAS_STATUS_NOT_INITIALIZED",
    "CUDNN_STATUS_NOT_INITIALIZED",
    "CUSOLVER_STATUS_NOT_INITIALIZED",
)
"""Status names with which these libraries report that they could not be started. On a full device this is for lack of
memory: the thread of the backward pass starts cuBLAS when activations already fill the device."""


def is_of_device(error: BaseException) -> bool:
    """Whether the CUDA runtime reports a fault of the GPU or of the host's driver, which no configuration causes."""
    if isinstance(error, torch.AcceleratorError):
        return getattr(error, "error_code", None) in _DEVICE_ERRORS
    if type(error) is not RuntimeError and not isinstance(error, dist.DistBackendError):
        return False
    text = str(error)
    return "cuda" in text.lower() and any(words in text for words in _DEVICE_ERRORS.values())


def is_unavailable(error: BaseException) -> bool:
    """Whether the CUDA runtime reports a GPU that is busy or unavailable."""
    if isinstance(error, torch.AcceleratorError):
        return getattr(error, "error_code", None) == _UNAVAILABLE
    return is_of_device(error) and _DEVICE_ERRORS[_UNAVAILABLE] in str(error)


def is_out_of_memory(error: BaseException, device: Device | None) -> bool:
    """Whether the exception means that host or device memory ran out, as reported by torch, the CUDA runtime and
    libraries, or NCCL on a full device."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    if isinstance(error, torch.AcceleratorError):
        return getattr(error, "error_code", None) == _CUDA_ERROR_MEMORY_ALLOCATION
    if isinstance(error, dist.DistBackendError):
        return _NCCL_EXHAUSTED in str(error) or _is_full(device)
    if type(error) is not RuntimeError:
        return False
    text = str(error)
    if any(status in text for status in _LIBRARY_NOT_STARTED):
        return _is_full(device)
    return any(status in text for status in _LIBRARY_EXHAUSTED)


def _is_full(device: Device | None) -> bool:
    """Whether a GPU has so little free memory that the failed start or call of a library is for lack of memory."""
    try:
        free = None if device is None else device.free_bytes()
    except RuntimeError:
        # After some errors, such as a failed assertion of a kernel, each later call of CUDA raises the same error.
        return False
    return free is not None and free < _EXHAUSTED_BYTES


def is_of_shared_memory(error: BaseException) -> bool:
    """Whether shared memory had no room for a file of NCCL. Containers of Docker have 64 MiB, which eight GPUs exceed."""
    if not isinstance(error, dist.DistBackendError):
        return False
    return _NCCL_SHARED_MEMORY in str(error) and _NO_SPACE in str(error)


def shared_memory_remedy() -> str:
    """Size of the shared memory that NCCL could not use, and how a container gets more."""
    try:
        room = f"{memory(shutil.disk_usage(_SHARED_MEMORY).total / GIB)} large"
    except OSError:
        room = "missing"
    return f"NCCL could not use {_SHARED_MEMORY}, which is {room}: start the container with --shm-size=1g or --ipc=host"
