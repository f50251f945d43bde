"""Match each collective across ranks, and derive its last rank, the waiting time of the others, and the clock offsets
of the ranks."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from shardtune.traces.rank_trace import Collective, RankTrace, StepMark

_NOT_OF_ALL = ("send_recv", "other")
"""Kinds of collectives that are not matched across ranks, because ranks may run them in different orders: those between
two ranks, and those with unknown members."""
_LEAST_FOR_CLOCK = 8
"""Minimum number of shared collectives from which the offset between two ranks' clocks is estimated; with fewer, it is
taken as 0."""
_CLOCK_NOISE = 200_000
"""Nanoseconds by which the ends of one collective differ between ranks that share a clock (with gloo, up to 60 µs in
the median). A smaller difference does not show that two clocks differ."""


@dataclass(frozen=True)
class CollectiveInstance:
    """One collective operation, matched across the ranks in whose traces it was found. Each member names a trace, and
    the collective's index in that trace."""

    members: tuple[tuple[int, int], ...]
    is_complete: bool
    """Whether the collective was found on every rank of its group."""


def matched_collectives(traces: Sequence[RankTrace]) -> list[CollectiveInstance]:
    """Match collectives across ranks by step, group, kind and order. A step contributes none if the ranks' numbers of
    collectives differ or groups are unknown."""
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
    """Return for each collective the step in which the host launched it; None if outside of all steps."""
    marks = trace.steps or (StepMark(0, trace.first, trace.last + 1),)
    starts = np.array([mark.start for mark in marks])
    launches = np.array([collective.launched for collective in trace.collectives], dtype=np.int64)
    at = np.searchsorted(starts, launches, side="right") - 1
    return [
        marks[i].number if i >= 0 and moment < marks[i].end else None for i, moment in zip(at, launches, strict=True)
    ]


def clock_offsets(traces: Sequence[RankTrace], instances: Sequence[CollectiveInstance]) -> list[int]:
    """Return for each trace the offset that must be added to its times so that its clock agrees with that of the first
    trace. A collective is assumed to end on all ranks at about the same time."""
    apart: dict[int, list[int]] = defaultdict(list)
    for instance in instances:
        ends = {at: traces[at].collectives[index].end for at, index in instance.members}
        if 0 in ends and traces[0].collectives[instance.members[0][1]].kind != "broadcast":
            for at, end in ends.items():
                apart[at].append(ends[0] - end)
    return [_offset(apart.get(at, [])) for at in range(len(traces))]


def _offset(differences: list[int]) -> int:
    """Return the median of the time differences between two clocks if it clearly exceeds their spread, else 0."""
    if len(differences) < _LEAST_FOR_CLOCK:
        return 0
    middle = float(np.median(differences))
    spread = float(np.median(np.abs(np.array(differences) - middle)))
    return round(middle) if abs(middle) > _CLOCK_NOISE + 3 * spread else 0


def shift_trace(trace: RankTrace, by: int) -> RankTrace:
    """Return the trace with the given offset added to all its times."""
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
    """Return for each collective of each trace the moment at which its last rank joined it. If the other ranks are
    unknown, this is the collective's own start."""
    moments = [[collective.start for collective in trace.collectives] for trace in traces]
    for instance in instances:
        last = max(traces[at].collectives[index].start for at, index in instance.members)
        for at, index in instance.members:
            moments[at][index] = min(last, traces[at].collectives[index].end)
    return moments


def waits_by_late_rank(
    traces: Sequence[RankTrace], instances: Sequence[CollectiveInstance]
) -> dict[int, dict[int, int]]:
    """Return, for each step, how many nanoseconds the other ranks waited for the rank that joined last, summed over
    collectives. Keys are the step and the index of the late rank's trace."""
    waited: dict[int, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    steps = [steps_of(trace) for trace in traces]
    for instance in instances:
        starts = {at: traces[at].collectives[index].start for at, index in instance.members}
        late = max(starts, key=lambda at: starts[at])
        step = steps[late][dict(instance.members)[late]]
        if step is not None:
            waited[step][late] += sum(starts[late] - start for start in starts.values())
    return waited
