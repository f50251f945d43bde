"""Twins: two rows of a table that differ only in ZeRO-0 or ZeRO-1, whose times show how far a sweep's noise reaches."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from benchmarks.parallel.prediction import Predicted
from benchmarks.parallel.tables import Measured

_AGREEING = 0.10
"""Largest difference of two twins' times that counts as agreement."""


@dataclass(frozen=True)
class Twins:
    """Positions of two twins in their table, and the relative difference of their times."""

    positions: tuple[int, int]
    difference: float

    @property
    def agree(self) -> bool:
        """Whether the two times differ by at most 10 %, so that neither run was slowed down by its nodes alone."""
        return self.difference <= _AGREEING


def find(rows: Sequence[Measured]) -> list[Twins]:
    """Pairs of rows that ran and that differ only in ZeRO-0 or ZeRO-1."""
    pairs: dict[Any, list[int]] = defaultdict(list)
    for position, row in enumerate(rows):
        if row.seconds is not None:
            pairs[row.training, replace(row.layout, zero=False), row.kernel].append(position)
    return [
        Twins((first, second), _difference(rows[first], rows[second]))
        for first, second in (positions for positions in pairs.values() if len(positions) == 2)
    ]


def _difference(first: Measured, second: Measured) -> float:
    slow, fast = max(first.seconds or 0.0, second.seconds or 0.0), min(first.seconds or 0.0, second.seconds or 0.0)
    return slow / fast - 1.0


def score(rows: Sequence[Measured], predictions: Sequence[Predicted]) -> dict[str, Any]:
    """How far twins differ, and the predictor's errors on the rows of those that agree."""
    twins = find(rows)
    positions = [position for pair in twins if pair.agree for position in pair.positions]
    errors = [predictions[position].seconds / (rows[position].seconds or 0.0) - 1.0 for position in positions]
    return {
        "pairs": len(twins),
        "median_difference": median(pair.difference for pair in twins) if twins else None,
        "agreeing_rows": len(positions),
        "speed_median_ape": median(map(abs, errors)) if errors else None,
        "signed": median(errors) if errors else None,
    }
