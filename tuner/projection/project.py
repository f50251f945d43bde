"""Projection of one configuration to a larger number of GPUs, from one or more sizes on which it was measured."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from shardtune.api_schemas.base import Band
from shardtune.api_schemas.studies.targets import UnseenAspect
from shardtune.tuner.projection import rank_term, trend
from shardtune.tuner.projection.sizes import MeasuredSize, PredictedSize
from shardtune.tuner.projection.structural import StructuralError, learnt

_MEMORY_SIGMA = 0.03
"""Relative error of a projected memory peak, before the error that each doubling of the GPUs adds."""


@dataclass(frozen=True)
class ProjectedValue:
    """Projected value with its 90 % band."""

    expected: float
    low: float
    high: float

    @property
    def band(self) -> Band:
        """The value in the form of the API's answers."""
        return Band(expected=self.expected, low=self.low, high=self.high)


@dataclass(frozen=True)
class Projection:
    """Projected speed and memory of a configuration at a size on which it was not measured."""

    gpus: int
    tokens_per_s_per_gpu: ProjectedValue
    memory_gib: ProjectedValue
    doublings: float
    """Number of doublings of the GPUs from the nearest measured size."""
    open_width: float
    """Part of the speed band's half-width (in logarithm) that comes from not knowing how far predicted communication
    time is off."""
    anchors: tuple[int, ...]
    """Numbers of GPUs of the measurements that the projection starts from: those of the configuration itself, else
    those of other layouts."""
    unseen: tuple[UnseenAspect, ...]
    """Aspects of the target that no measurement covers (`layout`, `nodes`, `uplinks`, `communication`, `gpu`); each
    widens the band."""
    seconds_per_rank: float = 0.0
    """Seconds by which each further rank lengthens a step; 0 where the measured sizes show no such growth."""
    slowness_if_scattered: float = 1.0
    """Factor by which the low end of the speed's band is lower, because neighbouring nodes may be below different leaf
    switches."""
    verdict: Literal["projected"] = "projected"


def project(anchors: Sequence[MeasuredSize], target: PredictedSize, error: StructuralError | None = None) -> Projection:
    """Project speed and memory to `target` from the measured sizes with the target's layout; if there are none, from
    measured sizes with other layouts.

    Raises:
        ValueError: no measured size, or none that is at most as large as the target.
    """
    error = error or learnt()
    smaller = sorted(
        (size for size in anchors if size.predicted.gpus <= target.gpus), key=lambda size: size.predicted.gpus
    )
    if not smaller:
        least = min((size.predicted.gpus for size in anchors), default=None)
        raise ValueError(
            f"gpus ({target.gpus}) must be at least as many as were measured ({least}); measure a smaller size"
            if least is not None
            else "measurements (none) must hold at least one size; measure one"
        )
    same = [size for size in smaller if size.predicted.has_layout_of(target)]
    used = same or smaller
    last = used[-1].predicted.gpus
    doublings = math.log2(target.gpus / last)
    unseen = _unseen_axes(used, target, bool(same))
    term = rank_term.fit(same) if same else None
    open_width = 0.0
    if term is not None:
        seconds, open_width = term.seconds(target), term.open_width(target)
    elif same:
        foreseen = trend.forecast(same, target, error.drift)
        seconds, open_width = foreseen.seconds, foreseen.communication_width
    else:
        seconds = target.seconds * math.exp(_slowness_of_others(used, target) + error.drift * doublings)
    other_gpu = "gpu" in unseen
    spread = math.exp(error.half_width(doublings, len(unseen) - other_gpu, open_width, other_gpu=other_gpu))
    # Nobody stated where the job's nodes will be. The low end is that of nodes without a neighbour below their leaf switch.
    scattered = target.slowness_if_scattered if "uplinks" in unseen else 1.0
    speed = target.tokens_per_gpu / seconds
    return Projection(
        gpus=target.gpus,
        tokens_per_s_per_gpu=ProjectedValue(speed, speed / spread / scattered, speed * spread),
        memory_gib=_memory(used, target, doublings, unknowns=(not same) + other_gpu),
        doublings=doublings,
        open_width=open_width,
        anchors=tuple(size.predicted.gpus for size in used),
        unseen=unseen,
        seconds_per_rank=term.per_rank_s if term is not None else 0.0,
        slowness_if_scattered=scattered,
    )


def _unseen_axes(used: Sequence[MeasuredSize], target: PredictedSize, same_layout: bool) -> tuple[UnseenAspect, ...]:
    axes: list[UnseenAspect] = [] if same_layout else ["layout"]
    if target.spans_nodes and not any(size.predicted.spans_nodes for size in used):
        axes.append("nodes")
    if target.uses_uplinks and not any(size.predicted.uses_uplinks for size in used):
        axes.append("uplinks")
    # One rank, or one group that only splits the model, shows no exchange of gradients: all of it is predicted.
    if target.has_gradient_exchange and not any(size.predicted.has_gradient_exchange for size in used):
        axes.append("communication")
    if any(size.predicted.gpu != target.gpu for size in used):
        axes.append("gpu")
    return tuple(axes)


def _slowness_of_others(used: Sequence[MeasuredSize], target: PredictedSize) -> float:
    """Logarithm of measured over predicted step time, averaged over measured sizes with other layouts; a layout weighs
    more the more it resembles the target's."""
    weights = [
        2.0 ** -(size.predicted.distance(target) + 0.5 * math.log2(target.gpus / size.predicted.gpus)) for size in used
    ]
    total = sum(weight * size.slowness for weight, size in zip(weights, used, strict=True))
    return float(total / sum(weights))


def _memory(used: Sequence[MeasuredSize], target: PredictedSize, doublings: float, unknowns: int) -> ProjectedValue:
    """Projected memory peak: the prediction for the target, plus the difference between measured and predicted peak at
    the largest measured size. `unknowns`: how many of layout and kind of GPU differ from what was measured."""
    measured = [size for size in used if size.memory_gib is not None]
    if not measured:
        spread = math.exp(1.64 * 0.10)
        return ProjectedValue(target.memory_gib, target.memory_gib / spread, target.memory_gib * spread)
    last = measured[-1]
    beyond = (last.memory_gib or 0.0) - last.predicted.memory_gib
    # Buffers and activations of a rank stay as they are; what is sharded shrinks with both.
    expected = max(target.memory_gib + beyond, 0.5 * target.memory_gib)
    spread = math.exp(1.64 * _MEMORY_SIGMA * (1.0 + 0.5 * doublings + unknowns))
    return ProjectedValue(expected, expected / spread, expected * spread)
