"""Compact table of one rank's trace: intervals of work on each side, and the collectives with their sizes."""

from dataclasses import dataclass
from typing import Literal

from shardtune.traces.spans import Spans

Device = Literal["cuda", "cpu"]


@dataclass(frozen=True)
class StepMark:
    """Range `ProfilerStep#number` on the host."""

    number: int
    start: int
    end: int


@dataclass(frozen=True)
class Work:
    """Kernels, copies or operators."""

    spans: Spans
    launched: Spans
    """Host's call that launched each of `spans`; where there is none (CPU ranks, nothing recorded), its own start
    twice."""

    def shifted(self, by: int) -> "Work":
        """Return the work on another clock."""
        return Work(self.spans + by, self.launched + by)


@dataclass(frozen=True)
class Collective:
    """One collective operation on one rank."""

    kind: str
    """all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, reduce, send_recv, barrier or other."""
    start: int
    end: int
    launched: int
    """Moment at which the host asked for it."""
    message_bytes: int | None
    """Bytes of the whole message, as nccl-tests count: the gathered result, the scattered input, the reduced buffer."""
    elements: int | None
    group: tuple[int, ...] | str | None
    """Ranks of its group, else the process group's name; None where the trace names none."""
    group_size: int | None

    @property
    def moved_bytes(self) -> float | None:
        """Bytes through a rank's link, by a ring (nccl-tests' bus bytes)."""
        if self.message_bytes is None or not self.group_size:
            return None
        share = (self.group_size - 1) / self.group_size
        factor = {"all_reduce": 2 * share, "all_gather": share, "reduce_scatter": share, "all_to_all": share}
        return self.message_bytes * factor.get(self.kind, 1.0)


@dataclass(frozen=True)
class RankTrace:
    """Trace of one rank for the analysis; moments in nanoseconds on one clock."""

    name: str
    rank: int
    world_size: int | None
    device: Device
    steps: tuple[StepMark, ...]
    compute: Work
    copies: Work
    optimizer: Spans
    """Ranges of the host in the optimizer."""
    data: Spans
    collectives: tuple[Collective, ...]
    has_unnamed_groups: bool
    """Whether some ranks form groups of their own, and the collectives do not name theirs (gloo)."""
    first: int
    last: int
    """End of all that was recorded; `first` is its begin."""
    events: int
