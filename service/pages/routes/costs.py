"""Page `/costs`: GPU-hours by month, project and cause."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from shardtune.api_schemas.retuning.costs import CostCause
from shardtune.service.access import costs
from shardtune.service.pages.rendering import render
from shardtune.service.pages.views.costs import rows
from shardtune.service.process.context import ContextDep

router = APIRouter(prefix="/costs")


@router.get("")
def show_costs(request: Request, context: ContextDep) -> Response:
    """Show GPU-hours of the last twelve months, by project and cause."""
    report = costs.report(context)
    return render(request, "costs.html", report=report, rows=rows(report), causes=list(CostCause))
