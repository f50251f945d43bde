"""Compact table of one rank's trace: time intervals of work on host and device, and collectives with their sizes."""

from dataclasses import dataclass
from typing import Literal

from shardtune.traces.spans import Spans

Device = Literal["cuda", "cpu"]


@dataclass(frozen=True)
class StepMark:
    """Time range of one step on the host, recorded by the profiler as `ProfilerStep#number`."""

    number: int
    start: int
    end: int


@dataclass(frozen=True)
class Work:
    """Time intervals of the kernels, copies or operators of one rank."""

    spans: Spans
    launched: Spans
    """Time interval of the host call that launched each entry of `spans`. If there is no such call (on CPU ranks), or
    it was not recorded, both ends of the interval are the entry's own start."""

    def shifted(self, by: int) -> "Work":
        """Return the same intervals with an offset added to all their times, to convert them to another clock."""
        return Work(self.spans + by, self.launched + by)


@dataclass(frozen=True)
class Collective:
    """Collective operation of one rank, with its times and message size."""

    kind: str
    """Kind of the collective: all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, reduce, send_recv, barrier
    or other."""
    start: int
    end: int
    launched: int
    """Moment at which the host launched the collective."""
    message_bytes: int | None
    """Bytes of the collective's whole message as nccl-tests define it: the gathered result, the scattered input, or the
    reduced buffer."""
    elements: int | None
    group: tuple[int, ...] | str | None
    """Ranks of the collective's process group, or the group's name if the trace does not list its ranks; None if the
    trace contains neither."""
    group_size: int | None

    @property
    def moved_bytes(self) -> float | None:
        """Bytes transferred over each rank's link if the collective uses a ring algorithm ("bus bytes" in
        nccl-tests)."""
        if self.message_bytes is None or not self.group_size:
            return None
        share = (self.group_size - 1) / self.group_size
        factor = {"all_reduce": 2 * share, "all_gather": share, "reduce_scatter": share, "all_to_all": share}
        return self.message_bytes * factor.get(self.kind, 1.0)


@dataclass(frozen=True)
class RankTrace:
    """Trace of one rank, prepared for the analysis; all moments are nanoseconds on one clock."""

    name: str
    rank: int
    world_size: int | None
    device: Device
    steps: tuple[StepMark, ...]
    compute: Work
    copies: Work
    optimizer: Spans
    """Time ranges on the host in which the optimizer ran."""
    data: Spans
    collectives: tuple[Collective, ...]
    has_unnamed_groups: bool
    """Whether the ranks' process groups differ, but the trace does not say to which group a collective belongs (so with
    gloo)."""
    first: int
    last: int
    """End of the last recorded event. `first` is the start of the first recorded event."""
    events: int
