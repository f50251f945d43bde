"""Chart of predicted memory as stacked bars against the usable memory, one bar per configuration."""

from collections.abc import Sequence
from dataclasses import dataclass

from shardtune.api_schemas.trials.predictions import MemoryTerm, Prediction
from shardtune.service.pages.charts.plot import AxisTick, ticks
from shardtune.service.pages.charts.scale import Scale
from shardtune.service.pages.figures import memory

KINDS: dict[str, tuple[str, ...]] = {
    "parameters": ("parameters", "masters"),
    "gradients": ("gradients",),
    "optimizer": ("optimizer",),
    "activations": ("activations", "recomputation", "logits"),
    "buffers": ("gathered", "buckets", "step", "offloaded"),
    "overhead": ("fragmentation", "device context", "communication library"),
}
"""Kinds of memory that the bars show, each with the predictor's memory terms that it adds up; `masters` is the fp32
copy of the parameters."""
_WIDTH, _SIDE = 520, 6
_MOST_OVER = 2.0
"""Length at which a bar is cut off, as a multiple of the usable memory. Otherwise one very long bar would leave only a
few pixels to the bars of configurations that fit."""


@dataclass(frozen=True)
class Part:
    """One segment of a bar."""

    x: float
    width: float
    kind: str
    title: str


@dataclass(frozen=True)
class Bar:
    """One configuration's memory."""

    parts: tuple[Part, ...]
    is_cut: bool
    capacity: float
    """Position of the usable memory."""
    width: int = _WIDTH


@dataclass(frozen=True)
class Stack:
    """All bars on one scale."""

    bars: tuple[Bar, ...]
    x_ticks: tuple[AxisTick, ...]
    capacity: float
    width: int = _WIDTH


def stack(predictions: Sequence[Prediction], usable_gib: float) -> Stack:
    """Return a bar for each memory prediction; all bars share one scale with the usable memory."""
    capacity = usable_gib
    largest = max(prediction.memory.total_gib for prediction in predictions)
    # 1.04: the line of the usable memory must not lie on the frame.
    end = min(max(largest, capacity) * 1.04, capacity * _MOST_OVER)
    scale = Scale(0, end, 0, _WIDTH - _SIDE)
    bars = tuple(
        Bar(_parts(prediction.memory.terms, scale), prediction.memory.total_gib > end, scale(capacity))
        for prediction in predictions
    )
    return Stack(bars, ticks(scale, 6), scale(capacity))


def by_kind(terms: Sequence[MemoryTerm]) -> dict[str, float]:
    """Add up the terms of a memory prediction by kind, in GiB; a term of unknown kind counts as a buffer."""
    kind_of = {name: kind for kind, names in KINDS.items() for name in names}
    sizes = dict.fromkeys(KINDS, 0.0)
    for term in terms:
        sizes[kind_of.get(term.name, "buffers")] += term.gib
    return sizes


def _parts(terms: Sequence[MemoryTerm], scale: Scale) -> tuple[Part, ...]:
    parts, begin = [], 0.0
    for kind, size in by_kind(terms).items():
        start, stop = min(begin, scale.high), min(begin + size, scale.high)
        if stop > start:
            x = scale(start)
            # At least half a unit: a thinner segment would not be painted, and its tooltip not be reachable.
            parts.append(Part(x, round(max(scale(stop) - x, 0.5), 1), kind, f"{kind} {memory(size)}"))
        begin += size
    return tuple(parts)
