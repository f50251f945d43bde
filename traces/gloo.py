"""Collectives of CPU ranks: operations of gloo's threads, matched with torch's calls.

A thread of gloo tells neither group nor kind as asked (a reduce-scatter runs as an all-reduce of the whole); the call does.
"""

import math
from collections import defaultdict, deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from shardtune.traces.kinds import collective_kind, dtype_bytes
from shardtune.traces.rank_trace import Collective


class Ran(NamedTuple):
    """Operation `gloo:…` on one of its threads, from its start there to its end."""

    start: int
    end: int
    name: str
    arguments: dict[str, Any]


class Asked(NamedTuple):
    """Call `c10d::…` on the thread that trains."""

    moment: int
    name: str
    arguments: dict[str, Any]


def collectives_of(ran: Sequence[Ran], asked: Sequence[Asked], base: int, group_size: int | None) -> list[Collective]:
    """Return each operation with its call, matched by its elements in the order of calls; `group_size` where all
    ranks are one group."""
    calls = _Calls(asked)
    return [_collective(one, calls.of(sum(_sizes(one.arguments))), base, group_size) for one in sorted(ran, key=_start)]


def _start(one: Ran) -> int:
    return one.start


def _collective(ran: Ran, call: "_Call | None", base: int, all_ranks: int | None) -> Collective:
    elements = sum(_sizes(ran.arguments))
    call = call or _Call(ran.start, collective_kind(ran.name), 0, None)
    group_size = call.group_size or all_ranks
    if not call.elements and call.kind == "all_gather":
        elements *= group_size or 0
    whole = max(call.elements, elements) or None
    sizes = [dtype_bytes(str(one)) for one in ran.arguments.get("Input type") or []]
    size = next((one for one in sizes if one), None)
    return Collective(
        kind=call.kind,
        start=ran.start + base,
        end=ran.end + base,
        launched=call.moment + base,
        message_bytes=None if whole is None or size is None else whole * size,
        elements=whole,
        group=None,
        group_size=group_size,
    )


class _Call(NamedTuple):
    """Call of a collective, on the thread that made it."""

    moment: int
    kind: str
    elements: int
    """Elements of the whole message; 0 where unknown."""
    group_size: int | None
    """Size of the group, where input and output sizes tell it."""


class _Calls:
    """Calls of torch by the number of elements that gloo gets, each taken once, in their order."""

    def __init__(self, asked: Sequence[Asked]) -> None:
        self._by_elements: dict[int, deque[_Call]] = defaultdict(deque)
        for one in sorted(asked, key=lambda one: one.moment):
            sizes, kind = [size for size in _sizes(one.arguments) if size], collective_kind(one.name)
            whole, part = max(sizes, default=0), min(sizes, default=0)
            if kind in ("all_gather", "reduce_scatter") and whole > part:
                given = part if kind == "all_gather" else whole
                self._by_elements[given].append(_Call(one.moment, kind, whole, whole // part))
            else:
                # An all-gather into a list of tensors shows what goes in only.
                known = 0 if kind == "all_gather" else sum(sizes)
                self._by_elements[sum(sizes)].append(_Call(one.moment, kind, known, None))

    def of(self, elements: int) -> _Call | None:
        """Take the first call for that many elements that has not been taken."""
        waiting = self._by_elements.get(elements)
        return waiting.popleft() if waiting else None


def _sizes(arguments: dict[str, Any]) -> list[int]:
    """Return the elements of each tensor among an operator's inputs, those of a list added up; 0 for other inputs."""
    shapes, types = arguments.get("Input Dims") or [], arguments.get("Input type") or []
    return [_elements(shape, str(of)) for shape, of in zip(shapes, types, strict=False)]


def _elements(shape: Any, of: str) -> int:
    if not isinstance(shape, list):
        return 0
    if of.endswith("TensorList") or any(isinstance(one, list) for one in shape):
        return sum(
            math.prod(one) for one in shape if isinstance(one, list) and not any(isinstance(n, list) for n in one)
        )
    # A tensor without dimensions has one element; a number has the type `Scalar`.
    return math.prod(shape) if dtype_bytes(of) is not None else 0
