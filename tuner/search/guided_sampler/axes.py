"""Mesh axes besides data parallelism, which the search uses only where a study names them: each is tried once, whatever
the prediction."""

from collections.abc import Iterable, Sequence

from shardtune.api_schemas.training.search_space import KnobValue
from shardtune.tuner.search.space.legal_values import Flat

Axes = frozenset[str]

# The predictor was checked against few such layouts, and a user who names an axis wants to see it measured.
AXES = ("context_parallel", "tensor_parallel", "pipeline_parallel", "expert_parallel")
_MOST_AT_ONCE = 2
"""Maximum number of mesh axes (context, tensor, pipeline and expert parallel) that a trial may use together for the
first time. With all four, there would be fifteen combinations to try."""


def axes_of(table: Flat) -> Axes:
    """Names of the mesh axes other than data parallelism that a configuration uses."""
    return frozenset(knob for knob in AXES if _is_split(table.get(knob)))


def first_untried(rows: Iterable[int], axes: Sequence[Axes], measured_axes: Iterable[Axes]) -> list[int]:
    """Choose one candidate (a row of the sampler's pool) for each combination of mesh axes that no trial has used,
    single axes before pairs.

    `rows`: rows in the order in which the sampler would try them. `axes`: mesh axes of each row of the pool.
    """
    first_rows: dict[Axes, int] = {}
    tried_axes = set(measured_axes)
    for row in rows:
        combination = axes[row]
        if 0 < len(combination) <= _MOST_AT_ONCE and combination not in tried_axes:
            first_rows.setdefault(combination, row)
    return [row for _, row in sorted(first_rows.items(), key=lambda entry: len(entry[0]))]


def first_reason(kind: Axes) -> str:
    """Text of the reason to try mesh axes for the first time, such as `first with context parallel and tensor
    parallel`."""
    return "first with " + " and ".join(axis.replace("_", " ") for axis in sorted(kind))


def _is_split(value: KnobValue | None) -> bool:
    return isinstance(value, int) and value > 1
