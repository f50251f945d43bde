"""Classification of a rank's exception as a recorded failure, by the exception's type and by the module that raised it."""

import re
import traceback
from collections.abc import Iterator
from types import TracebackType
from typing import Literal

from deepspeed.runtime.config import DeepSpeedConfigError
from deepspeed.runtime.zero.utils import ZeRORuntimeException

from shardtune.api_schemas.formatting import memory
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.trials.failures import Failure, FailureKind
from shardtune.workers import adapter, disk_errors
from shardtune.workers.blocks.host_inputs import OffloadError
from shardtune.workers.blocks.mlp_slices import SliceError
from shardtune.workers.rank import gpu_errors, private_names
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


_RECOMPILE_LIMIT = (
    "{knob} (true) reached Dynamo's limit of recompilations of one function, after which further calls would run "
    "uncompiled; set {knob} to false. TORCH_LOGS=recompiles in the worker's environment names the guards that failed"
)

_GRAPH_BREAK = (
    "loss_compile (true) found code in the loss that torch.compile cannot compile as one graph; set loss_compile to false. "
    "{error}"
)
_COMPILED_LOSS = "shardtune.workers.rank.model.chunk_math"
"""Name of the module that calls the compiled functions of the loss."""

_COMPILER_FAILED = re.compile(
    r"Failed to find C compiler|No working C\+\+ compiler found|Python\.h: No such file|"
    r"Command '\[.*'-shared'.* returned non-zero exit status",
    re.DOTALL,
)
"""Messages of a host that cannot build what `compile` needs. Triton builds a C module with Python's headers for every
kind of GPU (3.6, `runtime/build.py`), and torch names its command only; for processors torch builds each kernel in C++."""
_COMPILER_REMEDY = (
    "{knob} (true) needs gcc, g++ and the headers of this Python, and what it built with them failed; install them "
    "(`python3-dev` or `python3-devel`), or set {knob} to false. The compiler's words are in the log of the rank"
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


def failure_of(
    error: BaseException, phase: Phase, rank: int, device: Device | None = None, config: TrialConfig | None = None
) -> Failure:
    """Failure that a rank reports for an exception. It also depends on the phase in which the exception was raised, and
    on the rank's device and configuration, if it has them by then."""
    breaks_graph = config is not None and config.loss_compile and any(_is_graph_break(link) for link in _chain(error))
    kind = FailureKind.ILLEGAL if breaks_graph else _kind(error, phase, device)
    if any(_is_recompile_limit(link) for link in _chain(error)):
        text = _RECOMPILE_LIMIT.format(knob=_compiling_knob(config, error))
    elif breaks_graph:
        text = _GRAPH_BREAK.format(error=error)
    elif _is_of_unused_parameters(error):
        text = _UNUSED_PARAMETERS_TEXT
    elif (lack := private_names.explanation(error)) is not None:
        text = lack
    elif any(gpu_errors.is_of_shared_memory(link) for link in _chain(error)):
        text = f"{gpu_errors.shared_memory_remedy()}. {error}"
    elif any(gpu_errors.is_unavailable(link) for link in _chain(error)):
        text = f"{gpu_errors.UNAVAILABLE_REMEDY}. {error}"
    elif kind is FailureKind.CRASH and any(_COMPILER_FAILED.search(str(link)) for link in _chain(error)):
        text = f"{_COMPILER_REMEDY.format(knob=_compiling_knob(config, error))}. {type(error).__name__}: {error}"
    else:
        text = f"{type(error).__name__}: {error}" if kind is FailureKind.CRASH else str(error) or type(error).__name__
    return Failure(
        kind=kind,
        message=text[:4000],
        rank=rank,
        traceback="".join(traceback.format_exception(error))[-20_000:],
        peak_allocated_gib=error.peak_gib if isinstance(error, OverLimitError) else None,
    )


def _compiling_knob(config: TrialConfig | None, error: BaseException) -> str:
    """Knob with which the configuration compiles: `deepcompile` of DeepSpeed, `loss_compile`, or `compile`. Where both of
    the latter do, the code that raised the exception decides."""
    if config is None or not config.compiles:
        return "compile"
    if config.strategy.compiles:
        return "deepcompile"
    is_of_loss = not config.compile or any(_passed(link.__traceback__, _COMPILED_LOSS) for link in _chain(error))
    return "loss_compile" if config.loss_compile and is_of_loss else "compile"


def _kind(error: BaseException, phase: Phase, device: Device | None) -> FailureKind:
    if isinstance(error, OverLimitError):
        return FailureKind.OVER_LIMIT
    if isinstance(error, NumericsError):
        return FailureKind.NUMERICS
    if isinstance(error, SetupError) or private_names.explanation(error) is not None:
        return FailureKind.SETUP
    # Before memory: a call of NCCL that fails on a full device counts as out of memory.
    if any(gpu_errors.is_of_device(link) for link in _chain(error)):
        return FailureKind.DEVICE
    # Before device memory: NCCL's other errors on a full device are taken for a lack of it.
    if any(gpu_errors.is_of_shared_memory(link) for link in _chain(error)):
        return FailureKind.SETUP
    if any(gpu_errors.is_out_of_memory(link, device) for link in _chain(error)):
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


def _is_graph_break(error: BaseException) -> bool:
    """Whether Dynamo found code that it cannot compile as one graph in the loss, which has no other; compiled blocks may
    have several. The exception is recognised by name, since its module takes seconds to import."""
    is_of_dynamo = any(kind.__name__ == "Unsupported" for kind in type(error).__mro__)
    return is_of_dynamo and _passed(error.__traceback__, _COMPILED_LOSS)


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


def _passed(trace: TracebackType | None, module: str) -> bool:
    """Whether the exception passed through code of a module."""
    while trace is not None:
        if trace.tb_frame.f_globals.get("__name__") == module:
            return True
        trace = trace.tb_next
    return False


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
