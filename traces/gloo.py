"""Collectives of CPU ranks: operations on gloo's threads, matched with torch's calls. A gloo thread records neither
group nor kind of the call (a reduce-scatter runs as an all-reduce of the whole input); torch's call does."""

import math
from collections import defaultdict, deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from shardtune.traces.kinds import collective_kind, dtype_bytes
from shardtune.traces.rank_trace import Collective


class GlooOperation(NamedTuple):
    """Collective operation `gloo:…` on one of gloo's threads, with its start and end on that thread."""

    start: int
    end: int
    name: str
    arguments: dict[str, Any]


class HostCall(NamedTuple):
    """Collective call `c10d::…` on the training thread."""

    moment: int
    name: str
    arguments: dict[str, Any]


def collectives_of(
    operations: Sequence[GlooOperation], host_calls: Sequence[HostCall], base: int, group_size: int | None
) -> list[Collective]:
    """Return each gloo operation as a collective with its torch call, matched by number of elements in call order.
    `group_size`: size of the group, if all ranks form a single one."""
    calls = _Calls(host_calls)
    return [
        _collective(operation, calls.of(sum(_sizes(operation.arguments))), base, group_size)
        for operation in sorted(operations, key=_start)
    ]


def _start(operation: GlooOperation) -> int:
    return operation.start


def _collective(operation: GlooOperation, call: "_Call | None", base: int, all_ranks: int | None) -> Collective:
    elements = sum(_sizes(operation.arguments))
    call = call or _Call(operation.start, collective_kind(operation.name), 0, None)
    group_size = call.group_size or all_ranks
    if not call.elements and call.kind == "all_gather":
        elements *= group_size or 0
    message_elements = max(call.elements, elements) or None
    sizes = [dtype_bytes(str(dtype)) for dtype in operation.arguments.get("Input type") or []]
    size = next((size for size in sizes if size), None)
    return Collective(
        kind=call.kind,
        start=operation.start + base,
        end=operation.end + base,
        launched=call.moment + base,
        message_bytes=None if message_elements is None or size is None else message_elements * size,
        elements=message_elements,
        group=None,
        group_size=group_size,
    )


class _Call(NamedTuple):
    """Torch's call of a collective, with its time, kind and size."""

    moment: int
    kind: str
    elements: int
    """Number of elements of the whole message; 0 if unknown."""
    group_size: int | None
    """Number of ranks in the group, if input and output sizes determine it."""


class _Calls:
    """Torch's collective calls by the number of elements passed to gloo; each is used once, in call order."""

    def __init__(self, host_calls: Sequence[HostCall]) -> None:
        self._by_elements: dict[int, deque[_Call]] = defaultdict(deque)
        for call in sorted(host_calls, key=lambda call: call.moment):
            sizes, kind = [size for size in _sizes(call.arguments) if size], collective_kind(call.name)
            largest, smallest = max(sizes, default=0), min(sizes, default=0)
            if kind in ("all_gather", "reduce_scatter") and largest > smallest:
                gloo_elements = smallest if kind == "all_gather" else largest
                self._by_elements[gloo_elements].append(_Call(call.moment, kind, largest, largest // smallest))
            else:
                # An all-gather into a list of tensors shows what goes in only.
                message_elements = 0 if kind == "all_gather" else sum(sizes)
                self._by_elements[sum(sizes)].append(_Call(call.moment, kind, message_elements, None))

    def of(self, elements: int) -> _Call | None:
        """Return and remove the first unused call with this number of elements."""
        waiting = self._by_elements.get(elements)
        return waiting.popleft() if waiting else None


def _sizes(arguments: dict[str, Any]) -> list[int]:
    """Return the number of elements of each tensor among an operator's inputs, summed for a list; 0 for other inputs."""
    shapes, types = arguments.get("Input Dims") or [], arguments.get("Input type") or []
    return [_elements(shape, str(of)) for shape, of in zip(shapes, types, strict=False)]


def _elements(shape: Any, type_name: str) -> int:
    if not isinstance(shape, list):
        return 0
    if type_name.endswith("TensorList") or any(isinstance(inner, list) for inner in shape):
        return sum(
            math.prod(inner)
            for inner in shape
            if isinstance(inner, list) and not any(isinstance(n, list) for n in inner)
        )
    # A tensor without dimensions has one element; a number has the type `Scalar`.
    return math.prod(shape) if dtype_bytes(type_name) is not None else 0
