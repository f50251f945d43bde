"""Chart of the predicted against the measured memory of a study's trials, with the errors of the prediction."""

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
    """Chart of predicted against measured memory, with two figures: the error of predicted memory, and how well the
    predicted order of speeds agrees with the measured one."""

    plot: Plot
    memory_error: float
    """Relative error of predicted memory, as a fraction: the median of |predicted − measured| / measured over the
    trials."""
    trials: int
    rank_correlation: float | None
    """Spearman's rank correlation of predicted and measured speed. None if there are fewer than five trials, or the
    machine's rates were not measured."""


def predicted(points: Sequence[TrialPoint], link: str) -> Predicted | None:
    """Return the chart of predicted against measured memory; None if fewer than three trials have both figures."""
    measured = [p for p in points if p.state.is_feasible]
    pairs = [
        (p, peak_gib, p.predicted_memory_gib)
        for p in measured
        if (peak_gib := _measured_peak(p)) and p.predicted_memory_gib
    ]
    if len(pairs) < _FEWEST:
        return None
    error = median(abs(size - peak_gib) / peak_gib for _, peak_gib, size in pairs)
    return Predicted(_plot(pairs, link), error, len(pairs), _rank_correlation(measured))


def _measured_peak(point: TrialPoint) -> float | None:
    """Return the measured peak in GiB with which a predicted peak is compared: device memory on a GPU, tensors alone
    on CPU ranks."""
    return point.peak_allocated_gib if point.device_used_gib is None else point.device_used_gib


def _rank_correlation(points: Sequence[TrialPoint]) -> float | None:
    both = [(p.predicted_tokens_per_s_per_gpu, p.tokens_per_s_per_gpu) for p in points]
    complete = [(a, b) for a, b in both if a is not None and b is not None]
    # `correlation` raises for constant values, and a rank correlation of two or three points is chance.
    if len(complete) < _FEWEST_TO_RANK or min(len({a for a, _ in complete}), len({b for _, b in complete})) < _FEWEST:
        return None
    return correlation(_ranks([a for a, _ in complete]), _ranks([b for _, b in complete]))


def _ranks(values: Sequence[float]) -> list[float]:
    """Return the rank of each value in the order of the values; equal values share their mean rank."""
    below = sorted(values)
    return [(bisect_left(below, value) + bisect_right(below, value)) / 2 for value in values]


def _plot(pairs: Sequence[tuple[TrialPoint, float, float]], link: str) -> Plot:
    units, unit = memory_unit([size for _, *both in pairs for size in both])
    sizes = [size * units for _, *both in pairs for size in both]
    across, up = for_sizes(sizes, LEFT, WIDTH - RIGHT), for_sizes(sizes, HEIGHT - BOTTOM, TOP)
    ends = [(across(size), up(size)) for size in (across.low, across.high)]
    marks = []
    for point, peak_gib, size in pairs:
        backend = str(point.config["strategy"]["kind"])
        title = f"Trial {point.number}: predicted {memory(size, peak_gib)}, measured {memory(peak_gib, size)}"
        shape = backend_mark(backend)
        marks.append(
            Mark(across(peak_gib * units), up(size * units), shape, f"s-{backend}", title, f"{link}/{point.number}")
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
