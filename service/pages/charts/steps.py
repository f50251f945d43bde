"""Charts of a diagnosis: stacked bars of each rank's mean step, and the timeline of one step."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import fmean

from shardtune.api_schemas.trials.diagnosis import PART_LETTERS, PART_NAMES, Diagnosis, Lane, RankStep, Timeline
from shardtune.service.pages.charts.plot import AxisTick, ticks
from shardtune.service.pages.charts.scale import Scale, from_zero
from shardtune.service.wording.diagnosis_words import PART_WORDS

_WIDTH, _SIDE = 720, 8
_TICKS = 6
_COMMUNICATION = {
    "x": ("exposed", "exposed communication"),
    "b": ("hidden", "hidden communication"),
}


@dataclass(frozen=True)
class Piece:
    """A rectangle in a chart of steps: a part of a bar or of a timeline."""

    x: float
    width: float
    kind: str
    title: str


@dataclass(frozen=True)
class RankBar:
    """Bar of one rank's step; communication is drawn as a second, thinner bar."""

    rank: int
    seconds: float
    parts: tuple[Piece, ...]
    communication: tuple[Piece, ...] = ()


@dataclass(frozen=True)
class Steps:
    """Bars of several ranks, which share one scale in seconds."""

    bars: tuple[RankBar, ...]
    x_ticks: tuple[AxisTick, ...]
    width: int = _WIDTH


def rank_bars(diagnosis: Diagnosis) -> Steps:
    """Return a bar for each rank, which shows the parts of its mean step."""
    by_rank = {rank: [step for step in diagnosis.steps if step.rank == rank] for rank in diagnosis.ranks}
    own = {rank: _means(some) for rank, some in by_rank.items() if some}
    scale = _scale(max(sum(parts.values()) for parts in own.values()))
    bars = [RankBar(rank, sum(parts.values()), _stacked(parts, scale)) for rank, parts in own.items()]
    return _drawn(bars, scale)


def timeline(shown: Timeline) -> Steps:
    """Return the timeline of one step of each rank. The timelines are aligned at the beginnings of the steps, which
    differ in time between ranks."""
    scale, longest = _scale(shown.seconds), max(len(lane.parts) for lane in shown.lanes)
    cell_s = shown.seconds / max(1, longest)
    return _drawn([_lane(lane, scale, cell_s) for lane in shown.lanes], scale)


def legend(diagnosis: Diagnosis) -> tuple[tuple[str, str], ...]:
    """Return the kind and the display name of each part of a step, for the legend."""
    return tuple((name, PART_WORDS[name]) for name in PART_NAMES if getattr(diagnosis.parts, f"{name}_s") > 0)


def _drawn(bars: Iterable[RankBar], scale: Scale) -> Steps:
    # Ticks in milliseconds: most steps take less than a second.
    in_ms = Scale(1e3 * scale.low, 1e3 * scale.high, scale.start, scale.end)
    return Steps(tuple(bars), ticks(in_ms, _TICKS))


def _scale(seconds: float) -> Scale:
    """Return an axis that ends with a tick beyond the longest bar; the heading of the table shows that last tick."""
    return from_zero([seconds], 0, _WIDTH - _SIDE, _TICKS)


def _means(rank_steps: Sequence[RankStep]) -> dict[str, float]:
    return {name: fmean(getattr(step.parts, f"{name}_s") for step in rank_steps) for name in PART_NAMES}


def _stacked(parts: dict[str, float], scale: Scale) -> tuple[Piece, ...]:
    step_s, begin, pieces = sum(parts.values()) or 1.0, 0.0, []
    for name, seconds in parts.items():
        if seconds > 0:
            title = f"{PART_WORDS[name]}: {1e3 * seconds:,.1f} ms, {seconds / step_s:.0%}"
            pieces.append(_piece(begin, seconds, scale, name, title))
        begin += seconds
    return tuple(pieces)


def _lane(lane: Lane, scale: Scale, cell_s: float) -> RankBar:
    parts = ((PART_LETTERS[letter], PART_WORDS[PART_LETTERS[letter]]) for letter in lane.parts)
    communication = (_COMMUNICATION.get(letter) for letter in lane.communication)
    return RankBar(
        lane.rank,
        len(lane.parts) * cell_s,
        tuple(_runs(parts, scale, cell_s)),
        tuple(_runs(communication, scale, cell_s)),
    )


def _runs(cells: Iterable[tuple[str, str] | None], scale: Scale, cell_s: float) -> Iterable[Piece]:
    """Merge adjacent cells of a timeline that have the same kind into one rectangle."""
    begin = 0
    for part, cells_of_part in groupby(cells):
        count = len(list(cells_of_part))
        if part is not None:
            kind, words = part
            title = f"{words}, {1e3 * begin * cell_s:,.1f} to {1e3 * (begin + count) * cell_s:,.1f} ms"
            yield _piece(begin * cell_s, count * cell_s, scale, kind, title)
        begin += count


def _piece(begin: float, seconds: float, scale: Scale, kind: str, title: str) -> Piece:
    x = scale(begin)
    # At least 0.3 units: thinner rectangles are not painted.
    return Piece(x, round(max(scale(begin + seconds) - x, 0.3), 1), kind, title)
