"""The compact table of one rank's trace: what ran when, on which side, and what each collective moved."""

from dataclasses import dataclass
from typing import Literal

from shardtune.traces.spans import Spans

Device = Literal["cuda", "cpu"]


@dataclass(frozen=True)
class StepMark:
    """`ProfilerStep#number` on the host."""

    number: int
    start: int
    end: int


@dataclass(frozen=True)
class Work:
    """Kernels, copies or operators."""

    spans: Spans
    launched: Spans
    """Beside each: the host's call that launched it; where there is none (CPU ranks, nothing recorded), its own start twice."""

    def shifted(self, by: int) -> "Work":
        """On another clock."""
        return Work(self.spans + by, self.launched + by)


@dataclass(frozen=True)
class Collective:
    """One collective operation on one rank."""

    kind: str
    """all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, reduce, send_recv, barrier or other."""
    start: int
    end: int
    launched: int
    """When the host asked for it."""
    message_bytes: int | None
    """Of the whole message, as nccl-tests count: the gathered result, what is scattered, the buffer that is reduced."""
    elements: int | None
    group: tuple[int, ...] | str | None
    """Its ranks, else the process group's name; None where the trace names none."""
    group_size: int | None

    @property
    def moved_bytes(self) -> float | None:
        """Through a rank's link, by a ring (nccl-tests' bus bytes)."""
        if self.message_bytes is None or not self.group_size:
            return None
        share = (self.group_size - 1) / self.group_size
        factor = {"all_reduce": 2 * share, "all_gather": share, "reduce_scatter": share, "all_to_all": share}
        return self.message_bytes * factor.get(self.kind, 1.0)


@dataclass(frozen=True)
class RankTrace:
    """What the analysis needs of a trace; moments in nanoseconds on one clock."""

    name: str
    rank: int
    world_size: int | None
    device: Device
    steps: tuple[StepMark, ...]
    compute: Work
    copies: Work
    optimizer: Spans
    """Ranges of the host."""
    data: Spans
    collectives: tuple[Collective, ...]
    has_unnamed_groups: bool
    """Some ranks form groups of their own, and the collectives do not say which is theirs (gloo)."""
    first: int
    last: int
    """Of all that was recorded."""
    events: int
