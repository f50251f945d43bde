"""Pairs: a size that is projected from smaller ones of its group, and what was measured there."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from benchmarks.scaling.groups import Group
from shardtune.tuner.projection.project import Projection, project
from shardtune.tuner.projection.sizes import MeasuredSize
from shardtune.tuner.projection.structural import ScalingError, StructuralError, learnt, owner

_ANCHORS = 2
LOSING = 0.10
"""Fraction of the speed per GPU that a group must lose to count as losing."""


@dataclass(frozen=True)
class Pair:
    """One projection of a published size, beside its measurement."""

    group: Group
    target: MeasuredSize
    projection: Projection

    @property
    def factor(self) -> float:
        """Ratio of the target's GPUs to those of the smallest size that it was projected from."""
        return self.target.predicted.gpus / self.projection.anchors[0]

    @property
    def error(self) -> float:
        """Relative error of the projected tokens per second."""
        return self.projection.tokens_per_s_per_gpu.expected / self.target.tokens_per_s_per_gpu - 1.0

    @property
    def same_per_gpu(self) -> float:
        """Relative error of taking the smallest size's speed per GPU."""
        return self.group.sizes[0].tokens_per_s_per_gpu / self.target.tokens_per_s_per_gpu - 1.0

    @property
    def same_as_nearest(self) -> float:
        """Relative error of taking the speed per GPU of the largest size that was projected from."""
        nearest = next(s for s in self.group.sizes if s.predicted.gpus == self.projection.anchors[-1])
        return nearest.tokens_per_s_per_gpu / self.target.tokens_per_s_per_gpu - 1.0

    @property
    def covered(self) -> bool:
        """Whether the measured speed is within the band."""
        band = self.projection.tokens_per_s_per_gpu
        return band.low <= self.target.tokens_per_s_per_gpu <= band.high

    @property
    def memory_error(self) -> float | None:
        """Relative error of the projected peak, where both sizes state theirs."""
        first = self.group.sizes[0].memory_gib
        if self.target.memory_gib is None or first is None:
            return None
        return self.projection.memory_gib.expected / self.target.memory_gib - 1.0


def pairs(groups: Iterable[Group], anchors: int = _ANCHORS) -> list[Pair]:
    """Each size of each group, projected from the smallest size, or from the two smallest where it is a third or later
    one. The structural error is learnt without the group's own source."""
    return [pair for group in groups for pair in _of_group(group, anchors)]


def _of_group(group: Group, anchors: int) -> Iterator[Pair]:
    error = learnt(frozenset({owner(group.source)}))
    for position, target in enumerate(group.sizes):
        if target.predicted.gpus >= 2 * group.sizes[0].predicted.gpus:
            anchors_below = group.sizes[: min(position, anchors)]
            yield Pair(group, target, project(anchors_below, target.predicted, error))


def ladders(groups: Iterable[Group], fewest: int = 4, beyond: int = 8) -> list[Pair]:
    """The largest size of each group, projected from all sizes of at most an eighth of it, where there are enough."""
    projected = []
    for group in groups:
        largest = group.sizes[-1]
        anchors_below = [size for size in group.sizes if beyond * size.predicted.gpus <= largest.predicted.gpus]
        if len(anchors_below) >= fewest:
            error = learnt(frozenset({owner(group.source)}))
            projected.append(Pair(group, largest, project(anchors_below, largest.predicted, error)))
    return projected


def errors_by_source(groups: Iterable[Group]) -> dict[str, list[ScalingError]]:
    """Errors of projections from the smallest size of each group, from which the structural error is learnt."""
    errors: dict[str, list[ScalingError]] = {}
    for group in groups:
        for target in group.sizes[1:]:
            if target.predicted.gpus < 2 * group.sizes[0].predicted.gpus:
                continue
            projection = project(group.sizes[:1], target.predicted, StructuralError(drift=0.0, width=0.0))
            slowness = math.log(projection.tokens_per_s_per_gpu.expected / target.tokens_per_s_per_gpu)
            error = ScalingError(
                round(projection.doublings, 3),
                len(projection.unseen),
                round(slowness, 4),
                round(projection.open_width, 4),
            )
            errors.setdefault(group.source, []).append(error)
    return errors
