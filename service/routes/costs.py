"""Routes of costs: GPU-seconds used, and their price."""

from typing import Annotated

from fastapi import APIRouter, Query

from shardtune.api_schemas.retuning.costs import CostReport
from shardtune.service.access import costs
from shardtune.service.access.actions import Action
from shardtune.service.access.auth import requires
from shardtune.service.http.error_codes import problems
from shardtune.service.process.context import ContextDep
from shardtune.service.routes.studies import ProjectParam

router = APIRouter(prefix="/v1/costs", tags=["costs"], dependencies=[requires(Action.READ_STUDIES)])


@router.get("", responses=problems("unknown_project"))
def read_costs(
    context: ContextDep,
    project: ProjectParam = None,
    months: Annotated[
        int, Query(ge=1, le=120, description="Number of months, the present one included.")
    ] = costs.MONTHS,
) -> CostReport:
    """Read GPU-seconds by project, month and cause (search, final comparison, challenge, diagnosis, canary). They
    come with their price if the operator has set one.
    """
    return costs.report(context, project, months)
