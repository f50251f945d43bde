"""Read values of a trace's JSON with their types and bounds: a trace is a file of unknown origin."""

import math
from typing import Any

MOST_NS = 1 << 61
"""Largest accepted time in nanoseconds since 1970 (in the year 2043). The sum and the difference of two such times fit
into 64 bits."""
_MOST_COUNT = 1 << 53
_MOST_DIMENSIONS = 64
"""Maximum number of dimensions of a tensor in torch."""
_NAME_CHARS = 512


def mapping(value: Any) -> dict[str, Any]:
    """Return a JSON object; an empty one for a value of any other type."""
    return value if isinstance(value, dict) else {}


def items(value: Any) -> list[Any]:
    """Return a JSON list; an empty one for a value of any other type."""
    return value if isinstance(value, list) else []


def count(value: Any, most: int = _MOST_COUNT) -> int | None:
    """Return the value if it is a whole number from 0 to `most`; None for anything else."""
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    return value if is_whole and 0 <= value <= most else None


def text(value: Any) -> str:
    """Return the value if it is a string, cut to a maximum length; an empty string for a value of any other type."""
    return value[:_NAME_CHARS] if isinstance(value, str) else ""


def label(value: Any) -> str:
    """Return a string, number or truth value as text. The text is empty for null, and for lists and objects, because
    these may be nested to any depth."""
    return text(str(value)) if isinstance(value, str | int | float) else ""


def nanoseconds(microseconds: Any) -> int | None:
    """Return a time in nanoseconds; None if the value is no number or exceeds the largest accepted time."""
    try:
        number = float(microseconds)
    except (TypeError, ValueError, OverflowError):
        return None
    return round(number * 1000) if math.isfinite(number) and abs(number) * 1000 <= MOST_NS else None


def elements(shape: Any) -> int:
    """Return the number of elements of a tensor with this shape; 0 if the value is not a shape."""
    dimensions = items(shape)
    if len(dimensions) > _MOST_DIMENSIONS or any(count(size) is None for size in dimensions):
        return 0
    product = math.prod(dimensions)
    return product if product <= _MOST_COUNT else 0
