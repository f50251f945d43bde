"""Histogram of samples' lengths, by the tokens that samples of each length have in sum."""

from itertools import pairwise

from shardtune.api_schemas.training.sample_lengths import SampleLengths
from shardtune.service.pages.charts.plot import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Area, Plot, ticks
from shardtune.service.pages.charts.scale import Position, Scale, for_sizes, titled

_BARS = 24
_LOWEST = 1.0
"""Minimum height of a bar: a few long samples decide memory, and without a minimum their bars would be invisible."""


def histogram(data: SampleLengths) -> Plot | None:
    """Return a chart of how all tokens are distributed over ranges of sample lengths; None if all samples have one
    length."""
    shortest, longest = data.lengths[0][0], data.longest
    if shortest == longest:
        return None
    across = for_sizes([float(shortest), float(longest)], LEFT, WIDTH - RIGHT)
    percents = _percents(data, across)
    up = Scale(0, max(percents) * 1.05, HEIGHT - BOTTOM, TOP)
    heights = [max(_LOWEST, round(HEIGHT - BOTTOM - up(percent), 1)) if percent else 0.0 for percent in percents]
    middle = _median_by_tokens(data)
    return Plot(
        name="sample-lengths",
        summary=f"{data.samples:,} samples of {shortest:,} to {longest:,} tokens; half of all tokens are in samples of {middle:,} or more.",
        x_label=titled("tokens of a sample", across),
        y_label="% of all tokens",
        x_ticks=ticks(across, 5),
        y_ticks=ticks(up, 5),
        areas=tuple(
            Area(x, round(HEIGHT - BOTTOM - height, 1), round(right - x, 1), height, "tokens")
            for (x, right), height in zip(pairwise(_edges()), heights, strict=True)
            if height
        ),
        note=f"Half of all tokens are in samples of {middle:,} tokens or more.",
    )


def _edges() -> list[float]:
    """Return the horizontal positions of the bars' edges; all bars have the same width."""
    width = (WIDTH - RIGHT - LEFT) / _BARS
    return [round(LEFT + number * width, 1) for number in range(_BARS + 1)]


def _percents(data: SampleLengths, across: Position) -> list[float]:
    tokens = [0.0] * _BARS
    for length, count in data.lengths:
        bar = int((across(length) - LEFT) / (WIDTH - RIGHT - LEFT) * _BARS)
        tokens[min(max(bar, 0), _BARS - 1)] += length * count
    return [100.0 * part / sum(tokens) for part in tokens]


def _median_by_tokens(data: SampleLengths) -> int:
    """Return the sample length such that samples of at least this length contain half of all tokens."""
    left = data.mean * data.samples / 2
    for length, count in reversed(data.lengths):
        left -= length * count
        if left <= 0:
            return length
    return data.lengths[0][0]
