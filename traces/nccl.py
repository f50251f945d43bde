"""Collectives of GPU ranks: kernels of NCCL with the arguments that torch's ParamCommsUtils records."""

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from shardtune.traces import json_fields
from shardtune.traces.kinds import collective_kind, dtype_bytes
from shardtune.traces.rank_trace import Collective
from shardtune.traces.spans import Spans

MOST_RANKS = 1 << 20
"""Maximum number of ranks in a job or in a process group that is read from a trace."""
_GROUP_CHARS = 8192
"""Maximum length of a text that lists a process group's ranks. torch itself abbreviates longer lists by dots, from a
few dozen ranks on."""


class NcclKernel(NamedTuple):
    """Kernel of one collective."""

    start: int
    end: int
    correlation: int | None
    kind: str
    elements: int | None
    element_bytes: int | None
    group: tuple[int, ...] | str | None
    group_size: int | None


def kernel(pair: tuple[int, int], correlation: int | None, name: str, arguments: dict[str, Any]) -> NcclKernel:
    """Return the NCCL kernel that a trace event describes."""
    counts = [json_fields.count(arguments.get(f"{side} msg nelems")) or 0 for side in ("In", "Out")]
    return NcclKernel(
        *pair,
        correlation=correlation,
        kind=collective_kind(json_fields.text(arguments.get("Collective name")) or name),
        elements=max(counts) or None,
        element_bytes=dtype_bytes(json_fields.text(arguments.get("dtype"))),
        group=group(arguments),
        group_size=json_fields.count(arguments.get("Group size"), MOST_RANKS) or None,
    )


def group(arguments: dict[str, Any]) -> tuple[int, ...] | str | None:
    """Return the ranks of a kernel's process group, or else the group's name; None if the trace has neither."""
    ranks = arguments.get("Process Group Ranks")
    ranks = ", ".join(map(json_fields.label, ranks)) if isinstance(ranks, list) else ranks
    ranks = ranks if isinstance(ranks, str) else ""
    if ranks and "..." not in ranks and len(ranks) <= _GROUP_CHARS:
        return tuple(int(rank) for rank in re.findall(r"\d{1,9}", ranks)) or None
    return json_fields.label(arguments.get("Process Group Name")) or None


def collectives_of(kernels: Sequence[NcclKernel], launches: Spans, base: int) -> Iterator[Collective]:
    """Yield each NCCL kernel as a collective. `launches` contains the host call that launched each kernel."""
    for recorded, launched in zip(kernels, launches[:, 0].tolist(), strict=True):
        size = recorded.element_bytes
        yield Collective(
            kind=recorded.kind,
            start=recorded.start + base,
            end=recorded.end + base,
            launched=launched + base,
            message_bytes=None if recorded.elements is None or size is None else recorded.elements * size,
            elements=recorded.elements,
            group=recorded.group,
            group_size=recorded.group_size,
        )
