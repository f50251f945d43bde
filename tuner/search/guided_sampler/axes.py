"""Axes of the mesh beside data, which are searched where a study names them: each runs once, whatever is predicted of it.

The predictor has been held against little of such layouts, and who names an axis wants to see it measured.
"""

from collections.abc import Iterable, Sequence

from shardtune.api_schemas.training.search_space import KnobValue
from shardtune.tuner.search.space.legal_values import Flat

Axes = frozenset[str]

AXES = ("context_parallel", "tensor_parallel", "pipeline_parallel", "expert_parallel")
_MOST_AT_ONCE = 2
"""Axes of one such trial: with all four on, there would be fifteen kinds of them."""


def axes_of(table: Flat) -> Axes:
    """Those over which a configuration is split."""
    return frozenset(knob for knob in AXES if _is_split(table.get(knob)))


def due(rows: Iterable[int], axes: Sequence[Axes], tried: Iterable[Axes]) -> list[int]:
    """Of rows in the order in which they would be tried, the first of each kind that nobody has tried: axes alone, then two at once.

    `axes`: of each row of the pool.
    """
    left: dict[Axes, int] = {}
    known = set(tried)
    for row in rows:
        kind = axes[row]
        if 0 < len(kind) <= _MOST_AT_ONCE and kind not in known:
            left.setdefault(kind, row)
    return [row for _, row in sorted(left.items(), key=lambda one: len(one[0]))]


def first_with(kind: Axes) -> str:
    """Why such a trial is made, whatever gain is expected of it: `first with context parallel and tensor parallel`."""
    return "first with " + " and ".join(axis.replace("_", " ") for axis in sorted(kind))


def _is_split(value: KnobValue | None) -> bool:
    return isinstance(value, int) and value > 1
