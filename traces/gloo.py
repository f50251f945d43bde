"""Collectives of CPU ranks: operations on gloo's threads, matched with torch's calls. A gloo thread records neither
group nor kind of the call (a reduce-scatter runs as an all-reduce of the whole input); torch's call does."""

from collections import defaultdict, deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from shardtune.traces import json_fields
from shardtune.traces.kinds import collective_kind, dtype_bytes
from shardtune.traces.nccl import MOST_RANKS
from shardtune.traces.rank_trace import Collective


class GlooOperation(NamedTuple):
    """Collective operation that a thread of gloo executed, recorded as `gloo:…`, with its start and end."""

    start: int
    end: int
    kind: str
    elements: int
    """Number of elements of the operation's inputs."""
    element_bytes: int | None


class HostCall(NamedTuple):
    """Call of a collective on the training thread, recorded by torch as an operator `c10d::…`."""

    moment: int
    kind: str
    elements: int
    """Number of elements of all inputs together."""
    largest: int
    smallest: int
    """Number of elements of the largest and of the smallest input; empty inputs do not count."""


def gloo_operation(start: int, end: int, name: str, arguments: dict[str, Any]) -> GlooOperation:
    """Return the gloo operation that a trace event describes."""
    sizes = (dtype_bytes(json_fields.text(dtype)) for dtype in json_fields.items(arguments.get("Input type")))
    size = next((size for size in sizes if size), None)
    return GlooOperation(start, end, collective_kind(name), sum(_sizes(arguments)), size)


def host_call(moment: int, name: str, arguments: dict[str, Any]) -> HostCall:
    """Return the call of a collective that a trace event of the training thread describes."""
    sizes = [size for size in _sizes(arguments) if size]
    return HostCall(moment, collective_kind(name), sum(sizes), max(sizes, default=0), min(sizes, default=0))


def collectives_of(
    operations: Sequence[GlooOperation], host_calls: Sequence[HostCall], base: int, group_size: int | None
) -> list[Collective]:
    """Return gloo's operations as collectives, each combined with the torch call that caused it. Operations and calls
    with the same number of elements are matched in the order of time.

    `group_size`: size of the process group if all ranks form a single one; None otherwise.
    """
    calls = _Calls(host_calls)
    return [
        _collective(operation, calls.of(operation.elements), base, group_size)
        for operation in sorted(operations, key=_start)
    ]


def _start(operation: GlooOperation) -> int:
    return operation.start


def _collective(operation: GlooOperation, call: "_Call | None", base: int, all_ranks: int | None) -> Collective:
    elements = operation.elements
    call = call or _Call(operation.start, operation.kind, 0, None)
    group_size = call.group_size or all_ranks
    if not call.elements and call.kind == "all_gather":
        elements *= group_size or 0
    message_elements = max(call.elements, elements) or None
    size = operation.element_bytes
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
    """Call of a collective in torch, with its time, kind and size."""

    moment: int
    kind: str
    elements: int
    """Number of elements of the whole message; 0 if unknown."""
    group_size: int | None
    """Number of ranks in the group, if the sizes of input and output determine it; None otherwise."""


class _Calls:
    """Queues of torch's calls of collectives, one for each number of elements that a call passes to gloo. Each call is
    used once, in the order of calls."""

    def __init__(self, host_calls: Sequence[HostCall]) -> None:
        self._by_elements: dict[int, deque[_Call]] = defaultdict(deque)
        for call in sorted(host_calls, key=lambda call: call.moment):
            largest, smallest = call.largest, call.smallest
            if call.kind in ("all_gather", "reduce_scatter") and largest > smallest:
                gloo_elements = smallest if call.kind == "all_gather" else largest
                ranks = json_fields.count(largest // smallest, MOST_RANKS)
                self._by_elements[gloo_elements].append(_Call(call.moment, call.kind, largest, ranks))
            else:
                # An all-gather into a list of tensors shows what goes in only.
                message_elements = 0 if call.kind == "all_gather" else call.elements
                self._by_elements[call.elements].append(_Call(call.moment, call.kind, message_elements, None))

    def of(self, elements: int) -> _Call | None:
        """Return and remove the first unused call with this number of elements; None if there is none."""
        waiting = self._by_elements.get(elements)
        return waiting.popleft() if waiting else None


def _sizes(arguments: dict[str, Any]) -> list[int]:
    """Return the number of elements of each input of an operator. For a list of tensors this is the sum; for an input
    that is no tensor it is 0."""
    shapes, types = (json_fields.items(arguments.get(name)) for name in ("Input Dims", "Input type"))
    return [_elements(shape, json_fields.text(of)) for shape, of in zip(shapes, types, strict=False)]


def _elements(shape: Any, type_name: str) -> int:
    dimensions = json_fields.items(shape)
    if type_name.endswith("TensorList") or any(isinstance(inner, list) for inner in dimensions):
        return sum(json_fields.elements(inner) for inner in dimensions if isinstance(inner, list))
    # A tensor without dimensions has one element; a number has the type `Scalar`.
    is_tensor = isinstance(shape, list) and dtype_bytes(type_name) is not None
    return json_fields.elements(shape) if is_tensor else 0
