"""What was predicted for the trials of a study before they ran, beside what they measured."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import correlation, median

from shardtune.db.queries.trial_points import TrialPoint
from shardtune.service.pages.charts.plot import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Line,
    Mark,
    Plot,
    polyline,
    ticks,
)
from shardtune.service.pages.charts.scale import for_sizes, memory_unit, titled
from shardtune.service.pages.figures import memory
from shardtune.service.wording.backend_words import backend_mark

_FEWEST = 3
_FEWEST_TO_RANK = 5


@dataclass(frozen=True)
class Predicted:
    """Memory predicted and measured, and how well the predicted order of speeds held."""

    plot: Plot
    memory_error: float
    """Median of |predicted − measured| / measured."""
    trials: int
    rank_correlation: float | None
    """Spearman's, of predicted and measured speed; None below five trials, or without rates of the hardware."""


def predicted(points: Sequence[TrialPoint], link: str) -> Predicted | None:
    """None below three trials with both figures."""
    measured = [p for p in points if p.state.is_feasible]
    pairs = [(p, seen, p.predicted_memory_gib) for p in measured if (seen := _peak(p)) and p.predicted_memory_gib]
    if len(pairs) < _FEWEST:
        return None
    error = median(abs(size - seen) / seen for _, seen, size in pairs)
    return Predicted(_plot(pairs, link), error, len(pairs), _order(measured))


def _peak(point: TrialPoint) -> float | None:
    """What the prediction is about: the device's own figure on a GPU, tensors on CPU ranks."""
    return point.peak_allocated_gib if point.device_used_gib is None else point.device_used_gib


def _order(points: Sequence[TrialPoint]) -> float | None:
    both = [(p.predicted_tokens_per_s_per_gpu, p.tokens_per_s_per_gpu) for p in points]
    known = [(a, b) for a, b in both if a is not None and b is not None]
    if len(known) < _FEWEST_TO_RANK or min(len({a for a, _ in known}), len({b for _, b in known})) < _FEWEST:
        return None
    return correlation(_ranks([a for a, _ in known]), _ranks([b for _, b in known]))


def _ranks(values: Sequence[float]) -> list[float]:
    """Of each value among all; equal ones share their mean."""
    below = sorted(values)
    return [(bisect_left(below, value) + bisect_right(below, value)) / 2 for value in values]


def _plot(pairs: Sequence[tuple[TrialPoint, float, float]], link: str) -> Plot:
    units, unit = memory_unit([size for _, *both in pairs for size in both])
    sizes = [size * units for _, *both in pairs for size in both]
    across, up = for_sizes(sizes, LEFT, WIDTH - RIGHT), for_sizes(sizes, HEIGHT - BOTTOM, TOP)
    ends = [(across(size), up(size)) for size in (across.low, across.high)]
    marks = []
    for point, seen, size in pairs:
        backend = str(point.config["strategy"]["kind"])
        title = f"Trial {point.number}: predicted {memory(size)}, measured {memory(seen)}"
        shape = backend_mark(backend)
        marks.append(
            Mark(across(seen * units), up(size * units), shape, f"s-{backend}", title, f"{link}/{point.number}")
        )
    return Plot(
        name="predicted",
        summary=f"Predicted against measured peak memory of {len(pairs)} trials.",
        x_label=titled(f"measured peak, {unit}", across),
        y_label=titled(f"predicted, {unit}", up),
        x_ticks=ticks(across, 5),
        y_ticks=ticks(up, 5),
        lines=(Line(polyline(ends), "reference", "predicted = measured"),),
        marks=tuple(marks),
    )
