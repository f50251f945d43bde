"""Format counts, memory sizes and validation errors of a request for people."""

from collections.abc import Mapping, Sequence
from typing import Any

_MIB_BELOW_GIB = 1.0
_SMALL_GIB = 0.1
_COLUMN_IN_MIB_BELOW_GIB = 10.0


def counted(number: int, noun: str) -> str:
    """Format a number with its noun in the singular or plural: `1 rank`, `16 ranks`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def stated(number: float) -> str:
    """Format a number as its user gave it: `400`, `0.5`, `1234567`."""
    # The format `g` alone would round a number of more than six digits: 1.23457e+06.
    return f"{number:.12g}"


def listed(names: Sequence[str], conjunction: str = "and") -> str:
    """Return names as a list for a sentence, such as `DDP, FSDP1 and FSDP2`; empty if there are no names."""
    return f" {conjunction} ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def rate(tokens_per_s: float) -> str:
    """Format a speed in tokens per second with at least three significant digits: `0.0231`, `4.25`, `48.0`, `3,310`."""
    if 0 < tokens_per_s < 1:
        return f"{tokens_per_s:.3g}"
    digits = 2 if tokens_per_s < 10 else 1 if tokens_per_s < 100 else 0
    return f"{tokens_per_s:,.{digits}f}" if tokens_per_s else "0"


def speed_in_words(bytes_per_s: float) -> str:
    """Format a speed in decimal units, as link speeds and nccl-tests do: in GB/s, or in MB/s, kB/s or B/s if it is
    smaller."""
    for unit, size in (("GB/s", 1e9), ("MB/s", 1e6), ("kB/s", 1e3)):
        if bytes_per_s >= size:
            return f"{bytes_per_s / size:.3g} {unit}"
    return f"{bytes_per_s:.0f} B/s"


def memory(gib: float, *beside: float) -> str:
    """Format an amount of memory in GiB in MiB below 1 GiB, else in GiB: `4.05 MiB`, `358.4 MiB`, `1.00 GiB`, `79.2 GiB`.

    `beside`: amounts in GiB with which a reader compares this one, such as the other end of an interval. All get the
    unit of the largest: `0.99 GiB` beside `1.02 GiB`, and not `1,014 MiB`."""
    amounts = [abs(amount) for amount in (gib, *beside)]
    if max(amounts) < _MIB_BELOW_GIB:
        return _in_unit(gib * 1024, "MiB")
    return f"{gib:.3f} GiB" if abs(gib) < 1 and min(amounts) < _SMALL_GIB else _in_unit(gib, "GiB")


def memory_in_column(gib: float, column: Sequence[float]) -> str:
    """Format an amount of memory in GiB for a column of a table, so that a reader can compare its rows: all in MiB if none
    reaches 10 GiB. Beside larger ones, which would leave small amounts no digits, each has the unit of `memory`."""
    if max(gib, *column) < _COLUMN_IN_MIB_BELOW_GIB:
        return _in_unit(gib * 1024, "MiB")
    return memory(gib)


def _in_unit(size: float, unit: str) -> str:
    digits = 2 if abs(size) < 10 else 1 if abs(size) < 1000 else 0
    return f"{size:,.{digits}f} {unit}"


def field_line(error: Mapping[str, Any]) -> str:
    """Format one validation error of a request as a line that names the field by its full path."""
    field, message = str(error.get("field") or ""), str(error.get("message") or "").removeprefix("Value error, ")
    parent, _, name = field.rpartition(".")
    if not field or message.startswith((f"{field} (", f"{field} is ")):
        return message
    if message.startswith((f"{name} (", f"{name} is ")):
        return f"{parent}.{message}" if parent else message
    if error.get("value") is None or str(error["value"]) in message:
        return f"{field}: {message}"
    value = repr(error["value"])
    return f"{field} ({value if len(value) <= 80 else value[:77] + '…'}): {message}"
