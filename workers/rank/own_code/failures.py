"""Reasons why a step of the user's own code cannot be traced, from what was raised."""

from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)

from shardtune.api_schemas.printable_text import printable
from shardtune.api_schemas.training.step_trace import TraceFailure, TraceFailureCode

_LONGEST = 500
_NEEDS_VALUES = ("data pointer", "data_ptr", ".numpy()", "doesn't have storage", "no fake impl", "meta kernel")
"""Phrases in error messages of torch which show that an operator needs tensors with values, and so cannot run on fake
tensors (tensors without values)."""


def failure_of(error: BaseException) -> TraceFailure:
    """Code and text that say why a user's own code could not be traced with fake tensors (tensors without values),
    derived from the exception that it raised."""
    text = " ".join(str(error).split())
    code: TraceFailureCode = "error"
    if isinstance(error, DataDependentOutputException | DynamicOutputShapeException):
        code, text = "data_dependent", f"the step reads values of activations (operator {_operator(error)})"
    elif isinstance(error, UnsupportedOperatorException):
        code, text = "custom_operator", f"operator {_operator(error)} runs on tensors with values only"
    elif isinstance(error, MemoryError) or "can't allocate memory" in text:
        code, text = "memory", "tensors that the step makes itself do not fit into the memory of a trace"
    elif isinstance(error, UnsupportedFakeTensorException | NotImplementedError) or any(
        part in text for part in _NEEDS_VALUES
    ):
        code, text = "custom_operator", f"an operator needs tensors with values: {type(error).__name__}: {text}"
    else:
        text = f"the step raised {type(error).__name__}: {text}"
    return TraceFailure(code=code, message=printable(text)[:_LONGEST])


def _operator(error: DataDependentOutputException | DynamicOutputShapeException | UnsupportedOperatorException) -> str:
    return str(error.func)
