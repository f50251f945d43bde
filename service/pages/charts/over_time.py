"""How fast what is served for a case was found to be, each time it was measured: studies, retunes and canaries."""

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
class SpeedThen:
    """One time that the case was measured."""

    at: datetime
    tokens_per_s_per_gpu: float
    spread: tuple[float, float] | None
    """Slowest and fastest of its runs; None for a single one, and of canaries."""
    words: str
    """What measured it, and what came of it."""
    href: str
    kind: str
    """CSS class: `own` of what was served, `early` of what was not, `canary`, or `infeasible` for a slow canary."""


def over_time(found: Sequence[SpeedThen]) -> Plot | None:
    """Oldest first; None below two."""
    if len(found) < _FEWEST:
        return None
    begin = found[0].at
    ages = [(one.at - begin).total_seconds() for one in found]
    size, unit = next(((s, name) for s, name in _UNITS if ages[-1] / s >= _FEWEST_UNITS), _UNITS[-1])
    across = spanning([age / size for age in ages], LEFT, WIDTH - RIGHT, zero=True)
    up = for_sizes([v for one in found for v in (one.tokens_per_s_per_gpu, *(one.spread or ()))], HEIGHT - BOTTOM, TOP)
    places = [(across(age / size), one) for age, one in zip(ages, found, strict=True)]
    whiskers = tuple(
        Line(polyline([(x, up(end)) for end in one.spread]), "whisker") for x, one in places if one.spread is not None
    )
    served = [(x, up(one.tokens_per_s_per_gpu)) for x, one in places if one.kind == "own"]
    return Plot(
        name="case-speed",
        summary=f"Speed of the case each of the {len(found)} times it was measured, {rate(found[0].tokens_per_s_per_gpu)} "
        f"tokens/s/GPU at first and {rate(found[-1].tokens_per_s_per_gpu)} the last time.",
        x_label=f"{unit} since it was first measured",
        y_label=titled("tokens/s/GPU", up),
        x_ticks=ticks(across, 6),
        y_ticks=ticks(up, 5),
        lines=(*whiskers, *((Line(polyline(served), "own", "answers that were served"),) if len(served) > 1 else ())),
        marks=tuple(_mark(x, up(one.tokens_per_s_per_gpu), one) for x, one in places),
    )


def _mark(x: float, y: float, one: SpeedThen) -> Mark:
    shape = {"canary": "diamond", "infeasible": "cross"}.get(one.kind, "circle")
    title = f"{one.words}: {rate(one.tokens_per_s_per_gpu)} tokens/s/GPU, {exact(one.at)}"
    return Mark(x, y, shape, one.kind, title, one.href)
