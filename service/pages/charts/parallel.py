"""Chart of parallel coordinates: one axis per varied knob, one line per measured trial."""

from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Any

from shardtune.db.queries.trial_points import TrialPoint
from shardtune.service.pages.charts.plot import AxisTick, polyline
from shardtune.service.pages.charts.scale import from_zero
from shardtune.service.pages.figures import rate
from shardtune.service.wording.backend_words import backend_name
from shardtune.service.wording.disambiguate import knob_value
from shardtune.service.wording.knob_words import knob_name

WIDTH, HEIGHT, TOP, BOTTOM, LEFT, RIGHT = 1200, 320, 52, 18, 144, 60
"""Width, height and margins of the chart in SVG units. The left margin fits a backend's whole name even in the larger
letters of a phone."""
_ABSENT = "n/a"
_TITLE_CHARACTERS = 16
"""Maximum number of characters per line of an axis's title."""
_MOST_AXES = 9
_FEWEST_LINES = 15
"""Minimum number of trials for the chart, which draws a line for each; with fewer trials, their table is more
useful."""
_MOST_LINES = 60
"""Maximum number of trials in the chart (the fastest ones): more lines would hide each other."""


@dataclass(frozen=True)
class Axis:
    """One vertical axis."""

    x: float
    title: tuple[str, ...]
    """Lines of the title."""
    knob: str
    """Name of the knob that the axis shows; empty for the axis of speed."""
    ticks: tuple[AxisTick, ...]


@dataclass(frozen=True)
class Trace:
    """One trial across all axes."""

    points: str
    kind: str
    title: str
    href: str


@dataclass(frozen=True)
class Parallel:
    """The chart, ready to draw."""

    axes: tuple[Axis, ...]
    traces: tuple[Trace, ...]
    note: str
    width: int = WIDTH
    height: int = HEIGHT
    top: int = TOP
    bottom: int = BOTTOM


def parallel(
    points: Sequence[TrialPoint], flat: Sequence[dict[str, Any]], link: str, best: int | None
) -> Parallel | None:
    """Return a parallel-coordinates chart of the feasible trials; None if there are fewer than 15. `flat`: the
    configuration of each trial as a dict of knobs."""
    rows = [(p, f) for p, f in zip(points, flat, strict=True) if p.tokens_per_s_per_gpu and p.state.is_feasible]
    rows.sort(key=lambda row: row[0].tokens_per_s_per_gpu or 0.0)
    rows = rows[-_MOST_LINES:]
    knobs = _varied([f for _, f in rows])
    if len(rows) < _FEWEST_LINES or not knobs:
        return None
    gap = (WIDTH - LEFT - RIGHT) / len(knobs)
    speeds = from_zero([p.tokens_per_s_per_gpu or 0.0 for p, _ in rows], HEIGHT - BOTTOM, TOP)
    axes, places = [], []
    for index, knob in enumerate(knobs):
        values = _ordered([f.get(knob) for _, f in rows])
        ticks = _spread(values)
        axes.append(
            Axis(
                LEFT + index * gap,
                _title_lines(knob_name(knob)),
                knob,
                tuple(AxisTick(y, _value_label(knob, v)) for v, y in ticks),
            )
        )
        places.append({_key(value): y for value, y in ticks})
    last = WIDTH - RIGHT
    axes.append(Axis(last, ("tokens/s/GPU",), "", tuple(AxisTick(speeds(v), rate(v)) for v in speeds.ticks(5))))
    traces = []
    for point, table in rows:
        own = [(axis.x, place[_key(table.get(knob))]) for axis, place, knob in zip(axes, places, knobs, strict=False)]
        own.append((last, speeds(point.tokens_per_s_per_gpu or 0.0)))
        backend = str(table["backend"])
        kind = "chosen" if point.number == best else f"s-{backend}"
        title = f"Trial {point.number}: {backend_name(backend)}, {rate(point.tokens_per_s_per_gpu)} tokens/s/GPU"
        traces.append(Trace(polyline(own), kind, title, f"{link}/{point.number}"))
    # SVG paints in order: drawn last, the chosen trial lies on top.
    traces.sort(key=lambda trace: trace.kind == "chosen")
    absent = any(tick.label == _ABSENT for axis in axes for tick in axis.ticks)
    note = f"The {len(rows)} fastest feasible trials. " if len(rows) == _MOST_LINES else ""
    note += f"{_ABSENT}: the backend has no such knob." if absent else ""
    return Parallel(tuple(axes), tuple(traces), note)


def _varied(tables: Sequence[dict[str, Any]]) -> list[str]:
    """Return the knobs that have more than one value: first the main ones such as backend and micro batch, then the
    others, those that most trials have first."""
    names = {name for table in tables for name in table}
    different = [n for n in names if len({_key(table[n]) for table in tables if n in table}) > 1]
    first = ("backend", "micro_batch", "activation_checkpointing", "grad_sync", "stage", "dp_shard", "dp_replicate")

    def weight(name: str) -> tuple[int, int, str]:
        order = first.index(name) if name in first else len(first)
        return (order, -sum(name in table for table in tables), name)

    return sorted(different, key=weight)[:_MOST_AXES]


def _key(value: Any) -> str:
    # `1`, `1.0` and `True` are one key of a dict, but different settings.
    return repr(value)


def _ordered(values: Sequence[Any]) -> list[Any]:
    """Return the distinct values of a knob in the order of its axis: first the absence of the knob, then text values,
    then ascending numbers."""
    distinct = {_key(value): value for value in values}.values()
    numbers = sorted(v for v in distinct if isinstance(v, int | float) and not isinstance(v, bool))
    words = sorted((v for v in distinct if isinstance(v, str | bool)), key=str)
    return [*(v for v in distinct if v is None), *words, *numbers]


def _spread(values: Sequence[Any]) -> list[tuple[Any, float]]:
    """Place an axis's values at equal distances from bottom to top."""
    low, high = HEIGHT - BOTTOM - 8, TOP + 8
    if len(values) == 1:
        return [(values[0], (low + high) / 2)]
    return [(value, round(low + (high - low) * index / (len(values) - 1), 1)) for index, value in enumerate(values)]


def _value_label(knob: str, value: Any) -> str:
    return _ABSENT if value is None else knob_value(knob, value)


def _title_lines(title: str) -> tuple[str, ...]:
    """Break the title of an axis into at most two lines, so that it does not overlap the title of the next axis."""
    return tuple(wrap(title, max(_TITLE_CHARACTERS, -(-len(title) // 2) + 4)))
