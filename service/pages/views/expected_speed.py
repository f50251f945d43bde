"""Chart of the speed that the search expected of each trial, with its interval, against the measured speed."""

from collections.abc import Sequence
from dataclasses import dataclass

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
from shardtune.service.pages.charts.scale import for_sizes, titled
from shardtune.service.pages.figures import rate
from shardtune.service.wording.backend_words import backend_mark

_FEWEST_TRIALS, _MOST_DRAWN = 3, 120


@dataclass(frozen=True)
class Expected:
    """Chart of measured against expected speeds, and the number of measurements that lie within the intervals that the
    sampler expected."""

    plot: Plot
    inside: int
    trials: int


@dataclass(frozen=True)
class _Pair:
    point: TrialPoint
    measured: float
    low: float
    middle: float
    high: float


def expected(points: Sequence[TrialPoint], link: str) -> Expected | None:
    """Return the chart of measured against expected speeds; None if fewer than three measured trials have an expected
    speed."""
    pairs = [pair for point in points if (pair := _pair(point)) is not None]
    if len(pairs) < _FEWEST_TRIALS:
        return None
    inside = sum(pair.low <= pair.measured <= pair.high for pair in pairs)
    return Expected(_plot(pairs[-_MOST_DRAWN:], link), inside, len(pairs))


def _pair(point: TrialPoint) -> _Pair | None:
    # Seeds and trials of samplers without a model have no expectation, and failed trials no speed.
    ends = (point.low_tokens_per_s_per_gpu, point.expected_tokens_per_s_per_gpu, point.high_tokens_per_s_per_gpu)
    low, middle, high = ends
    measured = point.tokens_per_s_per_gpu
    if not point.state.is_feasible or not measured or not low or not middle or not high:
        return None
    return _Pair(point, measured, low, middle, high)


def _plot(pairs: Sequence[_Pair], link: str) -> Plot:
    speeds = [speed for pair in pairs for speed in (pair.measured, pair.low, pair.high)]
    across, up = for_sizes(speeds, LEFT, WIDTH - RIGHT), for_sizes(speeds, HEIGHT - BOTTOM, TOP)
    even = Line(polyline([(across(end), up(end)) for end in (across.low, across.high)]), "reference", "as expected")
    whiskers = [
        Line(polyline([(across(pair.measured), up(end)) for end in (pair.low, pair.high)]), "whisker") for pair in pairs
    ]
    marks = []
    for pair in pairs:
        backend, number = str(pair.point.config["strategy"]["kind"]), pair.point.number
        interval = f"{rate(pair.low)} to {rate(pair.high)}"
        title = (
            f"Trial {number}: expected {rate(pair.middle)} ({interval}), measured {rate(pair.measured)} tokens/s/GPU"
        )
        at = across(pair.measured), up(pair.middle)
        marks.append(Mark(*at, backend_mark(backend), f"s-{backend}", title, f"{link}/{number}"))
    return Plot(
        name="expected",
        summary=f"Expected against measured speed of {len(pairs)} trials, with 90 % intervals.",
        x_label=titled("measured, tokens/s/GPU", across),
        y_label=titled("expected", up),
        x_ticks=ticks(across, 5),
        y_ticks=ticks(up, 5),
        lines=(even, *whiskers),
        marks=tuple(marks),
    )
