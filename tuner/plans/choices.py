"""Choices among the rows of a plan."""

from collections import defaultdict
from collections.abc import Sequence

from shardtune.api_schemas.trials.plan_rows import PlanRow

_KNEE = 1.10
"""Largest ratio of the GPU-hours of a plan's row to the fewest GPU-hours with the same kind of GPU, up to which more
GPUs are still worth their cost (the knee of the curve)."""
_IN_TIME = ("surely", "likely")


def cheapest_in_time(rows: Sequence[PlanRow]) -> PlanRow | None:
    """Row of a plan with the least cost among those that are expected to meet the deadline; without prices, with the
    fewest GPU-hours."""
    in_time = [row for row in rows if row.meets_deadline is None or row.meets_deadline in _IN_TIME]
    priced = [row for row in in_time if row.cost is not None]
    return min(priced or in_time, key=_cost, default=None)


def fastest_in_budget(rows: Sequence[PlanRow]) -> PlanRow | None:
    """Row of a plan that ends first among those that are expected to cost no more than the budget."""
    return min((row for row in rows if row.within_budget in _IN_TIME), key=lambda row: row.hours.expected, default=None)


def knees(rows: Sequence[PlanRow]) -> tuple[PlanRow, ...]:
    """Row with the most GPUs, for each kind of GPU, whose GPU-hours are at most a tenth above the fewest of this kind:
    more GPUs would be used less efficiently."""
    kinds: dict[str, list[PlanRow]] = defaultdict(list)
    for row in rows:
        kinds[row.gpu].append(row)
    return tuple(_knee(listed) for listed in kinds.values())


def _knee(rows: Sequence[PlanRow]) -> PlanRow:
    least = min(row.gpu_hours.expected for row in rows)
    return max((row for row in rows if row.gpu_hours.expected <= _KNEE * least), key=lambda row: row.gpus)


def _cost(row: PlanRow) -> float:
    return (row.cost or row.gpu_hours).expected
