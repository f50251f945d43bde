"""Chart with two axes: the values that a template needs to draw it, and helpers to make them."""

from collections.abc import Sequence
from dataclasses import dataclass

from shardtune.service.pages.charts.scale import LogScale, Position, tick_label

WIDTH, HEIGHT = 460, 290
LEFT, RIGHT, TOP, BOTTOM = 58, 12, 28, 44
"""Margins around a chart's plotting area, in SVG units; axis labels and titles are drawn in the margins."""


@dataclass(frozen=True)
class AxisTick:
    """Tick of an axis: a position with its label."""

    at: float
    label: str


@dataclass(frozen=True)
class Line:
    """A polyline."""

    points: str
    """Points in SVG's format: `x,y x,y …`."""
    kind: str
    """CSS class, which decides colour and dash."""
    label: str = ""
    """Text of the line in the chart's legend. If empty, the legend leaves the line out."""


@dataclass(frozen=True)
class Mark:
    """One data point."""

    x: float
    y: float
    shape: str
    """Shape of the data point's symbol: `circle`, `square`, `triangle`, `diamond` or `cross`."""
    kind: str
    title: str
    """Tooltip."""
    href: str | None = None
    radius: float = 4


@dataclass(frozen=True)
class Area:
    """A shaded rectangle."""

    x: float
    y: float
    width: float
    height: float
    kind: str
    label: str = ""


@dataclass(frozen=True)
class Plot:
    """A chart with axes, ready to draw."""

    name: str
    """Name for the element's id and for assistive technology."""
    summary: str
    """Description of the chart in a sentence, for assistive technology."""
    x_label: str
    y_label: str
    x_ticks: tuple[AxisTick, ...]
    y_ticks: tuple[AxisTick, ...]
    lines: tuple[Line, ...] = ()
    marks: tuple[Mark, ...] = ()
    areas: tuple[Area, ...] = ()
    note: str = ""
    """Note below the chart, such as the number of omitted points."""
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT
    right: int = RIGHT
    top: int = TOP
    bottom: int = BOTTOM


def ticks(scale: Position, about: int) -> tuple[AxisTick, ...]:
    """Return axis ticks at round values of a scale, each with its label; approximately `about` of them."""
    largest = max(abs(scale.low), abs(scale.high))
    # On a logarithmic axis each label needs the digits of its own size: 0.1, 1, 10.
    own = isinstance(scale, LogScale)
    return tuple(AxisTick(scale(value), tick_label(value, value if own else largest)) for value in scale.ticks(about))


def polyline(points: Sequence[tuple[float, float]]) -> str:
    """Format points for SVG."""
    return " ".join(f"{x:g},{y:g}" for x, y in points)


def staircase(points: Sequence[tuple[float, float]], until: float) -> str:
    """Return a stepped line: it keeps the level of each point until the next point, and the last level until
    `until`."""
    steps: list[tuple[float, float]] = []
    for x, y in points:
        if steps:
            steps.append((x, steps[-1][1]))
        steps.append((x, y))
    if steps:
        steps.append((max(until, steps[-1][0]), steps[-1][1]))
    return polyline(steps)
