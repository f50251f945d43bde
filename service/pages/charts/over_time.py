"""Chart of a tuning target's speed at each of its measurements: studies, retunes and canaries."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

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
from shardtune.service.pages.charts.scale import for_sizes, spanning, titled
from shardtune.service.pages.figures import exact, rate

_UNITS = ((86_400.0, "days"), (3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"))
_FEWEST_UNITS = 2
_FEWEST = 2


@dataclass(frozen=True)
class SpeedMeasurement:
    """One measurement of a tuning target's speed."""

    at: datetime
    tokens_per_s_per_gpu: float
    spread: tuple[float, float] | None
    """Speeds of the slowest and the fastest run of the measurement. None if the measurement is a single run, or a
    canary (a check for slowdowns)."""
    words: str
    """Sentence that describes the measurement and its result."""
    href: str
    kind: str
    """CSS class of the point: `own` for answers that were recommended, `early` for other answers, `canary` for a check
    for slowdowns, or `infeasible` for a canary that was too slow."""


def over_time(measurements: Sequence[SpeedMeasurement]) -> Plot | None:
    """Return the chart of a tuning target's measured speeds, oldest first; None if there are fewer than two
    measurements."""
    if len(measurements) < _FEWEST:
        return None
    begin = measurements[0].at
    ages = [(measured.at - begin).total_seconds() for measured in measurements]
    # The largest unit of which the span has at least two; one day would have ticks of 0.2 days.
    size, unit = next(((s, name) for s, name in _UNITS if ages[-1] / s >= _FEWEST_UNITS), _UNITS[-1])
    across = spanning([age / size for age in ages], LEFT, WIDTH - RIGHT, zero=True)
    up = for_sizes(
        [v for measured in measurements for v in (measured.tokens_per_s_per_gpu, *(measured.spread or ()))],
        HEIGHT - BOTTOM,
        TOP,
    )
    places = [(across(age / size), measured) for age, measured in zip(ages, measurements, strict=True)]
    whiskers = tuple(
        Line(polyline([(x, up(end)) for end in measured.spread]), "whisker")
        for x, measured in places
        if measured.spread is not None
    )
    recommended = [(x, up(measured.tokens_per_s_per_gpu)) for x, measured in places if measured.kind == "own"]
    return Plot(
        name="case-speed",
        summary=f"Speed at each of {len(measurements)} measurements, {rate(measurements[0].tokens_per_s_per_gpu)} "
        f"tokens/s/GPU at first and {rate(measurements[-1].tokens_per_s_per_gpu)} the last time.",
        x_label=f"{unit} since it was first measured",
        y_label=titled("tokens/s/GPU", up),
        x_ticks=ticks(across, 6),
        y_ticks=ticks(up, 5),
        lines=(
            *whiskers,
            *((Line(polyline(recommended), "own", "recommended answers"),) if len(recommended) > 1 else ()),
        ),
        marks=tuple(_mark(x, up(measured.tokens_per_s_per_gpu), measured) for x, measured in places),
    )


def _mark(x: float, y: float, measured: SpeedMeasurement) -> Mark:
    shape = {"canary": "diamond", "infeasible": "cross"}.get(measured.kind, "circle")
    title = f"{measured.words}: {rate(measured.tokens_per_s_per_gpu)} tokens/s/GPU, {exact(measured.at)}"
    return Mark(x, y, shape, measured.kind, title, measured.href)
