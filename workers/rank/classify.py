"""Classification of a rank's exception as a recorded failure, by the exception's type and by the module that raised it.

Text decides only where torch has no type for a CUDA library's status: a status is a name that does not change with wording.
"""

import traceback
from collections.abc import Iterator
from types import TracebackType
from typing import Literal

import torch
import torch.distributed as dist
from deepspeed.runtime.config import DeepSpeedConfigError
from deepspeed.runtime.zero.utils import ZeRORuntimeException

from shardtune.api_schemas.formatting import memory
from shardtune.api_schemas.trials.failures import Failure, FailureKind
from shardtune.workers import adapter, disk_errors
from shardtune.workers.blocks.host_inputs import OffloadError
from shardtune.workers.blocks.mlp_slices import SliceError
from shardtune.workers.rank import private_names
from shardtune.workers.rank.device import Device

Phase = Literal["starting", "building", "training"]


class NumericsError(Exception):
    """Exception for a loss or gradient norm that is not finite (NaN or infinite), or for optimizer states whose dtype
    is not that of the study's precision."""


class OverLimitError(Exception):
    """Exception for a memory use above the task's limit; it carries the peak."""

    def __init__(self, peak_gib: float, limit_gib: float) -> None:
        super().__init__(f"peak memory of {memory(peak_gib)} exceeds the limit of {memory(limit_gib)} per rank")
        self.peak_gib = peak_gib


class SetupError(Exception):
    """Exception for a machine that lacks a library, compiler, core or disk space which the run needs."""


class LostGradientError(Exception):
    """Exception for a gradient that the training backend would leave out of a step without an error."""


_CUDA_ERROR_MEMORY_ALLOCATION = 2
_EXHAUSTED_BYTES = 512 << 20
"""Number of free bytes on the GPU below which a failed call of NCCL, or a failed start of a CUDA library, is classified as
out of memory. They allocate memory outside of torch and need not report the reason."""
_NCCL_EXHAUSTED = "'out of memory'"
"""Text of the CUDA runtime in NCCL's last error, such as `Cuda failure 2 'out of memory'`, which torch adds to its own
message if NCCL has one."""

_DEVICE_ERRORS = {
    46: "CUDA-capable device(s) is/are busy or unavailable",
    100: "no CUDA-capable device is detected",
    214: "uncorrectable ECC error encountered",
    220: "uncorrectable NVLink error detected during the execution",
    802: "system not yet initialized",
}
"""Errors of the CUDA runtime that no program causes: code (`driver_types.h` of CUDA 13) and text (`cudaGetErrorString`). The
text decides for what torch raises without a code, such as NCCL's last error or a failed start of CUDA."""

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

_RECOMPILE_LIMIT = (
    "compile (true) reached Dynamo's limit of recompilations of one function, after which further blocks would run "
    "uncompiled; set compile to false. TORCH_LOGS=recompiles in the worker's environment names the guards that failed"
)

_UNUSED_PARAMETERS = "Expected to have finished reduction in the prior iteration"
"""Beginning of the error message of DistributedDataParallel about parameters without a gradient. It is a plain
RuntimeError that DDP's forward raises (torch 2.13)."""
_UNUSED_PARAMETERS_TEXT = (
    "some trained parameters get no gradient in a step, and DistributedDataParallel waits for it. Freeze them "
    "(requires_grad=False), delete them, or leave ddp out of space.backends; in a Trainer script, set "
    "trainer.args.ddp_find_unused_parameters = True. static_graph (true) may fail like this, too; set it to false"
)

_REJECTIONS = (ValueError, NotImplementedError, DeepSpeedConfigError, ZeRORuntimeException)
_BACKENDS = ("deepspeed", "torch.distributed", "torch.nn.parallel")


def failure_of(error: BaseException, phase: Phase, rank: int, device: Device | None = None) -> Failure:
    """Failure that a rank reports for an exception. It also depends on the phase in which the exception was raised, and
    on the rank's device, if it has one by then."""
    kind = _kind(error, phase, device)
    if any(_is_recompile_limit(link) for link in _chain(error)):
        text = _RECOMPILE_LIMIT
    elif _is_of_unused_parameters(error):
        text = _UNUSED_PARAMETERS_TEXT
    elif (lack := private_names.explanation(error)) is not None:
        text = lack
    else:
        text = f"{type(error).__name__}: {error}" if kind is FailureKind.CRASH else str(error) or type(error).__name__
    return Failure(
        kind=kind,
        message=text[:4000],
        rank=rank,
        traceback="".join(traceback.format_exception(error))[-20_000:],
        peak_allocated_gib=error.peak_gib if isinstance(error, OverLimitError) else None,
    )


def _kind(error: BaseException, phase: Phase, device: Device | None) -> FailureKind:
    if isinstance(error, OverLimitError):
        return FailureKind.OVER_LIMIT
    if isinstance(error, NumericsError):
        return FailureKind.NUMERICS
    if isinstance(error, SetupError) or private_names.explanation(error) is not None:
        return FailureKind.SETUP
    # Before memory: a call of NCCL that fails on a full device counts as out of memory.
    if any(_is_of_device(link) for link in _chain(error)):
        return FailureKind.DEVICE
    if any(_is_out_of_memory(link, device) for link in _chain(error)):
        return FailureKind.OOM
    if any(disk_errors.is_of_disk(link) for link in _chain(error)):
        return FailureKind.SETUP
    if any(_is_recompile_limit(link) for link in _chain(error)) or _is_of_unused_parameters(error):
        return FailureKind.ILLEGAL
    if phase == "building" and isinstance(error, ImportError):
        # Such as attention ("flash_attention_2") whose package is not installed on this worker.
        return FailureKind.SETUP
    if isinstance(error, adapter.Rejected | LostGradientError | OffloadError | SliceError):
        return FailureKind.ILLEGAL
    if phase == "building" and _is_rejection(error):
        return FailureKind.ILLEGAL
    return FailureKind.CRASH


def _is_recompile_limit(error: BaseException) -> bool:
    """Whether Dynamo reached its limit of recompilations of a function. The exception is recognised by name, since its module
    takes seconds to import."""
    return type(error).__name__ == "FailOnRecompileLimitHit"


def _is_of_unused_parameters(error: BaseException) -> bool:
    """Whether an exception of DistributedDataParallel says that some parameters got no gradient in the previous
    step."""
    return type(error) is RuntimeError and str(error).startswith(_UNUSED_PARAMETERS)


def _is_rejection(error: BaseException) -> bool:
    """Whether an exception means that the training backend rejects a value of the configuration while it wraps the
    model."""
    if isinstance(error, _REJECTIONS):
        return True
    # DeepSpeed also rejects values by `assert`.
    return isinstance(error, AssertionError) and _raised_in(error.__traceback__).startswith(_BACKENDS)


def _raised_in(trace: TracebackType | None) -> str:
    """Name of the module whose code raised the exception."""
    name = ""
    while trace is not None:
        name = str(trace.tb_frame.f_globals.get("__name__", ""))
        trace = trace.tb_next
    return name


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Exception followed by its causes and contexts in order."""
    visited: set[int] = set()
    while error is not None and id(error) not in visited:
        visited.add(id(error))
        yield error
        # Contexts too: torch's compiler raises its errors `from None` (2.13, InductorError).
        error = error.__cause__ or error.__context__


def _is_of_device(error: BaseException) -> bool:
    """Whether the CUDA runtime reports a fault of the GPU or of the host's driver, which no configuration causes."""
    if isinstance(error, torch.AcceleratorError):
        return getattr(error, "error_code", None) in _DEVICE_ERRORS
    if type(error) is not RuntimeError and not isinstance(error, dist.DistBackendError):
        return False
    text = str(error)
    return "cuda" in text.lower() and any(words in text for words in _DEVICE_ERRORS.values())


def _is_out_of_memory(error: BaseException, device: Device | None) -> bool:
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
