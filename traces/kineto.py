"""Convert the events of a Kineto trace to the table of one rank: CUDA kernels and copies, or operators and gloo
threads. Reads the fields written by torch 1.12 to 2.13; `record_param_comms` and kernel arguments follow torch's
ParamCommsUtils."""

import re
from typing import Any, BinaryIO

import numpy as np

from shardtune.traces import gloo, json_fields, nccl
from shardtune.traces.event_table import EventTable
from shardtune.traces.json_pieces import EVENTS, JsonPieces, UnreadableTrace
from shardtune.traces.rank_trace import Collective, RankTrace, StepMark
from shardtune.traces.spans import Spans, spans

MOST_BYTES = 1 << 30
MOST_EVENTS = 4_000_000
_MOST_VALUES = 16_000_000
"""Maximum number of values in a trace file, including those of events that are not used. Reading so many takes about
half a minute."""
_FACTS = ("baseTimeNanoseconds", "distributedInfo")
"""Top-level keys of a trace file that are read; other keys, of any size, are skipped."""
_MOST_STEP_EVENTS = 1 << 26
"""Maximum product of the numbers of steps and events in a trace, because the analysis of each step looks at every
event."""


def read(stream: BinaryIO, name: str, most_bytes: int = MOST_BYTES, most_events: int = MOST_EVENTS) -> RankTrace:
    """Read one rank's trace table from the text of a trace file.

    Raises:
        UnreadableTrace: the trace is cut off, too large, has values of wrong types, or has no known events.
    """
    table = EventTable(name)
    about: dict[str, Any] = {}
    for values, (key, value) in enumerate(JsonPieces(stream, name, most_bytes).items(), 1):
        if values > _MOST_VALUES:
            raise too_many_events(name, _MOST_VALUES)
        if key == EVENTS and isinstance(value, dict):
            table.add(value)
            if table.events > most_events:
                raise too_many_events(name, most_events)
        elif key in _FACTS:
            about[key] = value
    if not table.events:
        raise UnreadableTrace(
            f"trace ({name}) has no events of torch.profiler (cpu_op, kernel, …); export it with "
            "`prof.export_chrome_trace`, one file a rank"
        )
    if table.events * len(table.steps) > _MOST_STEP_EVENTS:
        raise too_many_events(name, _MOST_STEP_EVENTS // len(table.steps))
    return _rank_trace(table, name, about)


def too_many_events(name: str, most_events: int) -> UnreadableTrace:
    """Return the error for a trace that contains more events than this program reads."""
    return UnreadableTrace(
        f"trace ({name}) has more than {most_events:,} events, the most that are read; record fewer steps "
        "(torch.profiler.schedule, active=3)"
    )


def _rank_trace(table: EventTable, name: str, about: dict[str, Any]) -> RankTrace:
    """Return the complete trace table of one rank. If the trace contains its offset to the common clock of all ranks
    (`baseTimeNanoseconds`), times are on that clock."""
    distributed = json_fields.mapping(about.get("distributedInfo"))
    world_size = json_fields.count(distributed.get("world_size"), nccl.MOST_RANKS) or None
    first, last = table.bounds()
    base = _base(about, name, first, last)
    is_cuda = bool(table.kernels or table.nccl)
    compute = table.work(table.kernels) if is_cuda else table.operators()
    has_groups = _has_groups(distributed, world_size)
    collectives = (
        list(nccl.collectives_of(table.nccl, _launches(table), base))
        if is_cuda
        else gloo.collectives_of(table.gloo, table.host_calls, base, None if has_groups else world_size)
    )
    return RankTrace(
        name=name,
        rank=_rank(distributed, name),
        world_size=world_size,
        device="cuda" if is_cuda else "cpu",
        steps=_disjoint_steps(table.steps, base),
        compute=compute.shifted(base),
        copies=table.work(table.copies).shifted(base),
        optimizer=spans(table.ranges["optimizer"]) + base,
        data=spans(table.ranges["data"]) + base,
        collectives=tuple(sorted(collectives, key=_start)),
        has_unnamed_groups=any(collective.group is None for collective in collectives) and has_groups,
        first=first + base,
        last=last + base,
        events=table.events,
    )


def _base(about: dict[str, Any], name: str, first: int, last: int) -> int:
    """Return the offset that must be added to a trace's times to get nanoseconds since 1970, the clock of all ranks; 0
    if the trace states none."""
    given = about.get("baseTimeNanoseconds")
    base = 0 if given is None else json_fields.count(given, json_fields.MOST_NS)
    if base is None or max(abs(first + base), abs(last + base)) > json_fields.MOST_NS:
        raise UnreadableTrace(
            f"trace ({name}): baseTimeNanoseconds ({json_fields.label(given):.40}) must be nanoseconds since 1970 that its events' ts are "
            "relative to; write the trace again, or leave it out"
        )
    return base


def _start(collective: Collective) -> int:
    return collective.start


def _launches(table: EventTable) -> Spans:
    correlations = [-1 if kernel.correlation is None else kernel.correlation for kernel in table.nccl]
    starts = np.array([kernel.start for kernel in table.nccl], dtype=np.int64)
    return table.launches(np.array(correlations, dtype=np.int64), starts)


def _disjoint_steps(marks: list[StepMark], base: int) -> tuple[StepMark, ...]:
    """Return the trace's steps in order, on the clock common to all ranks; a step that overlaps the next one ends where
    that step begins."""
    ordered = sorted(set(marks), key=lambda mark: (mark.start, mark.end))
    ends = [*(mark.start for mark in ordered[1:]), json_fields.MOST_NS][: len(ordered)]
    return tuple(
        StepMark(mark.number, mark.start + base, min(mark.end, end) + base)
        for mark, end in zip(ordered, ends, strict=True)
    )


def _has_groups(distributed: dict[str, Any], world_size: int | None) -> bool:
    groups = map(json_fields.mapping, json_fields.items(distributed.get("pg_config")))
    sizes = {len(json_fields.items(group.get("ranks"))) or json_fields.count(group.get("pg_size")) for group in groups}
    return any(size is not None and 1 < size < (world_size or 0) for size in sizes)


def _rank(distributed: dict[str, Any], name: str) -> int:
    """Return the rank stated in the trace, or else in its file name; 0 if neither states one."""
    rank = json_fields.count(distributed.get("rank"), nccl.MOST_RANKS)
    named = re.search(r"rank[-_.]?(\d{1,6})", name, re.IGNORECASE)
    return rank if rank is not None else int(named[1]) if named else 0
