"""Where the step of each rank went: stacked bars of the means, and one step moment by moment."""

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
    "x": ("exposed", "communication, nothing computed beside it"),
    "b": ("hidden", "communication, hidden"),
}


@dataclass(frozen=True)
class Piece:
    """A rectangle of a bar or a lane."""

    x: float
    width: float
    kind: str
    title: str


@dataclass(frozen=True)
class RankBar:
    """One rank; its communication stands in a thinner row of its own."""

    rank: int
    seconds: float
    parts: tuple[Piece, ...]
    communication: tuple[Piece, ...] = ()


@dataclass(frozen=True)
class Steps:
    """Bars of ranks on one scale of seconds."""

    bars: tuple[RankBar, ...]
    x_ticks: tuple[AxisTick, ...]
    width: int = _WIDTH


def rank_bars(found: Diagnosis) -> Steps:
    """The mean step of each rank."""
    by_rank = {rank: [one for one in found.steps if one.rank == rank] for rank in found.ranks}
    own = {rank: _means(some) for rank, some in by_rank.items() if some}
    scale = _scale(max(sum(parts.values()) for parts in own.values()))
    bars = [RankBar(rank, sum(parts.values()), _stacked(parts, scale)) for rank, parts in own.items()]
    return _drawn(bars, scale)


def timeline(shown: Timeline) -> Steps:
    """One step of each rank, from its own begin."""
    scale, longest = _scale(shown.seconds), max(len(lane.parts) for lane in shown.lanes)
    cell_s = shown.seconds / max(1, longest)
    return _drawn([_lane(lane, scale, cell_s) for lane in shown.lanes], scale)


def present(found: Diagnosis) -> tuple[tuple[str, str], ...]:
    """Kind and words of the parts that a legend needs."""
    return tuple((name, PART_WORDS[name]) for name in PART_NAMES if getattr(found.parts, f"{name}_s") > 0)


def _drawn(bars: Iterable[RankBar], scale: Scale) -> Steps:
    # In milliseconds: steps are short.
    in_ms = Scale(1e3 * scale.low, 1e3 * scale.high, scale.start, scale.end)
    return Steps(tuple(bars), ticks(in_ms, _TICKS))


def _scale(seconds: float) -> Scale:
    """It ends with a tick beyond the longest bar: the table's head names that one."""
    return from_zero([seconds], 0, _WIDTH - _SIDE, _TICKS)


def _means(some: Sequence[RankStep]) -> dict[str, float]:
    return {name: fmean(getattr(one.parts, f"{name}_s") for one in some) for name in PART_NAMES}


def _stacked(parts: dict[str, float], scale: Scale) -> tuple[Piece, ...]:
    step_s, begin, found = sum(parts.values()) or 1.0, 0.0, []
    for name, seconds in parts.items():
        if seconds > 0:
            title = f"{PART_WORDS[name]}: {1e3 * seconds:,.1f} ms, {seconds / step_s:.0%}"
            found.append(_piece(begin, seconds, scale, name, title))
        begin += seconds
    return tuple(found)


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
    """Neighbouring cells of one kind as one rectangle."""
    begin = 0
    for told, some in groupby(cells):
        count = len(list(some))
        if told is not None:
            kind, words = told
            title = f"{words}, {1e3 * begin * cell_s:,.1f} to {1e3 * (begin + count) * cell_s:,.1f} ms"
            yield _piece(begin * cell_s, count * cell_s, scale, kind, title)
        begin += count


def _piece(begin: float, seconds: float, scale: Scale, kind: str, title: str) -> Piece:
    x = scale(begin)
    return Piece(x, round(max(scale(begin + seconds) - x, 0.3), 1), kind, title)
