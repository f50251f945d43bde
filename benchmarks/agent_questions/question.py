"""One question: the calls that answer it, the value read from their answers, and the key it is held against."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["memory", "speed", "choice", "diagnosis", "plan"]
Call = tuple[str, dict[str, Any]]
Answers = Sequence[dict[str, Any]]


@dataclass(frozen=True)
class Question:
    """Question of a user."""

    kind: Kind
    text: str
    calls: tuple[Call, ...]
    """Tools with their arguments."""
    read: Callable[[Answers], Any]
    """Function that reads the reply from the structured answers, and computes nothing that an agent could not."""
    is_right: Callable[[Any], bool]
    """Whether the reply agrees with the key."""
    key: str
    """Key in words, with its source."""


def job(model: str | dict[str, Any], cluster: str, **more: Any) -> dict[str, Any]:
    """Arguments that describe a training job."""
    return {"model": model, "cluster": cluster, **more}


def band(figure: dict[str, Any]) -> tuple[float, float]:
    """Ends of a figure's band."""
    return float(figure["low"]), float(figure["high"])


def covers(value: float) -> Callable[[Any], bool]:
    """Check that a band covers the measured value of the key."""
    return lambda ends: bool(ends[0] <= value <= ends[1])


def near(value: float, share: float) -> Callable[[Any], bool]:
    """Check that a reply is within a share of the key."""
    return lambda reply: bool(abs(reply - value) <= share * abs(value))


def equals(value: Any) -> Callable[[Any], bool]:
    """Check that a reply is the key."""
    return lambda reply: bool(reply == value)
