"""Chart of the verdict on one line: each pair's ratio, the median and its 95 % interval."""

from dataclasses import dataclass

from shardtune.api_schemas.studies.study_result import Speedup
from shardtune.service.pages.charts.plot import AxisTick, ticks
from shardtune.service.pages.charts.scale import spanning

WIDTH, HEIGHT, SIDE = 460, 92, 16


@dataclass(frozen=True)
class Interval:
    """The chart, ready to draw."""

    low: float
    value: float
    high: float
    even: float
    """Position of ratio 1."""
    pairs: tuple[tuple[float, str], ...]
    x_ticks: tuple[AxisTick, ...]
    summary: str
    width: int = WIDTH
    height: int = HEIGHT


def interval(speedup: Speedup) -> Interval:
    """Return the chart of a speed-up and its interval."""
    (low, high), ratios = speedup.ci95, speedup.ratios
    # 1 is always in view: the question is on which side of it the interval lies.
    scale = spanning([1.0, low, high, *ratios], SIDE, WIDTH - SIDE, pad=0.08)
    return Interval(
        low=scale(low),
        value=scale(speedup.value),
        high=scale(high),
        even=scale(1.0),
        pairs=tuple((scale(ratio), f"pair {number}: {ratio:.3f}×") for number, ratio in enumerate(ratios, 1)),
        x_ticks=tuple(AxisTick(tick.at, f"{tick.label}×") for tick in ticks(scale, 6)),
        summary=f"Speed-up {speedup.value:.2f}×, 95 % interval {low:.2f} to {high:.2f}, from {speedup.pairs} pairs.",
    )
