"""Rows of the cost table: one for each month of a project, with a column for each cause."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shardtune.api_schemas.retuning.costs import Cost, CostCause, CostReport, price_of


@dataclass(frozen=True)
class CostRow:
    """One project in one month."""

    month: str
    project_id: str
    gpu_hours: Mapping[CostCause, float]
    total: float
    """Sum of the GPU-hours of all causes."""
    price: float | None


def rows(report: CostReport) -> list[CostRow]:
    """Return a row for each project and month, in the report's order, which has the newest month first."""
    alike: defaultdict[tuple[str, str], list[Cost]] = defaultdict(list)
    for cost in report.costs:
        alike[cost.month, cost.project_id].append(cost)
    return [_row(month, project_id, costs, report) for (month, project_id), costs in alike.items()]


def _row(month: str, project_id: str, costs: Sequence[Cost], report: CostReport) -> CostRow:
    seconds = sum(cost.gpu_seconds for cost in costs)
    hours = {cause: sum(cost.gpu_seconds for cost in costs if cost.cause is cause) / 3600 for cause in CostCause}
    return CostRow(month, project_id, hours, seconds / 3600, price_of(seconds, report.price_per_gpu_hour))
