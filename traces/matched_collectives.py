"""Match each collective on all ranks: its last rank, the waits of the others, and the offsets of the ranks' clocks."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from shardtune.traces.rank_trace import Collective, RankTrace, StepMark

_NOT_OF_ALL = ("send_recv", "other")
"""Kinds between two ranks of a group, or of unknown members: their order on one rank is not that on another."""
_LEAST_FOR_CLOCK = 8
"""Least number of ends that allow to estimate a clock's offset."""
_CLOCK_NOISE = 200_000
"""Nanoseconds by which ends differ on one clock (gloo: up to 60 µs in the median)."""


@dataclass(frozen=True)
class CollectiveInstance:
    """One collective with every rank that was found in it: (trace, index among the trace's collectives)."""

    members: tuple[tuple[int, int], ...]
    is_complete: bool
    """Whether every rank of the group was found."""


def matched_collectives(traces: Sequence[RankTrace]) -> list[CollectiveInstance]:
    """Match collectives by step, group, kind and order; none where a step's counts differ or groups are unknown."""
    if any(trace.has_unnamed_groups for trace in traces):
        return []
    places_by_trace: dict[object, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for at, trace in enumerate(traces):
        for index, (step, collective) in enumerate(zip(steps_of(trace), trace.collectives, strict=True)):
            if step is not None and collective.kind not in _NOT_OF_ALL:
                places_by_trace[(step, collective.group, collective.kind)][at].append(index)
    return [instance for by_trace in places_by_trace.values() for instance in _paired(traces, by_trace)]


def _paired(traces: Sequence[RankTrace], by_trace: dict[int, list[int]]) -> Iterator[CollectiveInstance]:
    if len(by_trace) < 2 or len({len(places) for places in by_trace.values()}) > 1:
        return
    for members in zip(*([(at, index) for index in places] for at, places in by_trace.items()), strict=True):
        at, index = members[0]
        size = traces[at].collectives[index].group_size or traces[at].world_size
        yield CollectiveInstance(members, is_complete=size is not None and len(members) >= size)


def steps_of(trace: RankTrace) -> list[int | None]:
    """Return the step in which the host asked for each collective; None outside of all."""
    marks = trace.steps or (StepMark(0, trace.first, trace.last + 1),)
    starts = np.array([mark.start for mark in marks])
    launches = np.array([collective.launched for collective in trace.collectives], dtype=np.int64)
    at = np.searchsorted(starts, launches, side="right") - 1
    return [
        marks[i].number if i >= 0 and moment < marks[i].end else None for i, moment in zip(at, launches, strict=True)
    ]


def clock_offsets(traces: Sequence[RankTrace], instances: Sequence[CollectiveInstance]) -> list[int]:
    """Return the offset to add to each trace's moments: a collective ends on all ranks at about the same time."""
    apart: dict[int, list[int]] = defaultdict(list)
    for instance in instances:
        ends = {at: traces[at].collectives[index].end for at, index in instance.members}
        if 0 in ends and traces[0].collectives[instance.members[0][1]].kind != "broadcast":
            for at, end in ends.items():
                apart[at].append(ends[0] - end)
    return [_offset(apart.get(at, [])) for at in range(len(traces))]


def _offset(differences: list[int]) -> int:
    """Return the median of the differences where it exceeds their own spread, else 0."""
    if len(differences) < _LEAST_FOR_CLOCK:
        return 0
    middle = float(np.median(differences))
    spread = float(np.median(np.abs(np.array(differences) - middle)))
    return round(middle) if abs(middle) > _CLOCK_NOISE + 3 * spread else 0


def shift_trace(trace: RankTrace, by: int) -> RankTrace:
    """Return the trace with all its moments moved."""
    if not by:
        return trace
    return replace(
        trace,
        steps=tuple(StepMark(mark.number, mark.start + by, mark.end + by) for mark in trace.steps),
        compute=trace.compute.shifted(by),
        copies=trace.copies.shifted(by),
        optimizer=trace.optimizer + by,
        data=trace.data + by,
        collectives=tuple(_moved(collective, by) for collective in trace.collectives),
        first=trace.first + by,
        last=trace.last + by,
    )


def _moved(collective: Collective, by: int) -> Collective:
    return replace(collective, start=collective.start + by, end=collective.end + by, launched=collective.launched + by)


def join_moments(traces: Sequence[RankTrace], instances: Sequence[CollectiveInstance]) -> list[list[int]]:
    """Return the moment at which the last rank joined, for each collective of each trace; its own start where the
    others are not known."""
    moments = [[collective.start for collective in trace.collectives] for trace in traces]
    for instance in instances:
        last = max(traces[at].collectives[index].start for at, index in instance.members)
        for at, index in instance.members:
            moments[at][index] = min(last, traces[at].collectives[index].end)
    return moments


def waits_by_late_rank(
    traces: Sequence[RankTrace], instances: Sequence[CollectiveInstance]
) -> dict[int, dict[int, int]]:
    """Return by step the nanoseconds that all others together waited for each trace that joined last."""
    waited: dict[int, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    steps = [steps_of(trace) for trace in traces]
    for instance in instances:
        starts = {at: traces[at].collectives[index].start for at, index in instance.members}
        late = max(starts, key=lambda at: starts[at])
        step = steps[late][dict(instance.members)[late]]
        if step is not None:
            waited[step][late] += sum(starts[late] - start for start in starts.values())
    return waited
