"""Routes of retunes, which measure recommendations again."""

from typing import Annotated

from fastapi import APIRouter, Query

from shardtune.api_schemas.retuning.retunes import PlannedRun, Retune, RetunePage, RetuneState
from shardtune.db.queries.retunes import RetuneFilter
from shardtune.service.access.actions import Action
from shardtune.service.access.auth import requires
from shardtune.service.http.error_codes import problems
from shardtune.service.http.idempotent_requests import IdempotencyDep
from shardtune.service.http.paging import LimitParam, PageTokenParam
from shardtune.service.process.context import ContextDep
from shardtune.service.retuning import records
from shardtune.service.routes.best import TargetKeyParam
from shardtune.service.routes.studies import ProjectParam

router = APIRouter(prefix="/v1", tags=["retunes"])

_READ = [requires(Action.READ_STUDIES)]


@router.get("/retunes", dependencies=_READ, responses=problems("invalid_page_token"))
def list_retunes(
    context: ContextDep,
    target_key: Annotated[
        str | None, Query(pattern=r"^[0-9a-f]{32}$", description="Only retunes of this tuning target.")
    ] = None,
    schedule_id: Annotated[
        str | None, Query(max_length=32, description="Only retunes that this schedule requested.")
    ] = None,
    state: Annotated[list[RetuneState] | None, Query(description="Only retunes in these states.")] = None,
    project: ProjectParam = None,
    limit: LimitParam = 50,
    page_token: PageTokenParam = None,
) -> RetunePage:
    """List past, running and queued retunes (repeated measurements of recommendations) with cause, cost and outcome.
    Newest first.
    """
    retune_filter = RetuneFilter(project, target_key, schedule_id, tuple(sorted(set(state or ()))))
    return records.list_retunes(context, retune_filter, page_token, limit)


@router.get("/retunes/{retune_id}", dependencies=_READ, responses=problems("unknown_retune"))
def read_retune(context: ContextDep, retune_id: str) -> Retune:
    """Read one retune (repeated measurement of a recommendation): its cause, state, cost and outcome."""
    return records.read(context, retune_id)


@router.post(
    "/retunes/{retune_id}:cancel",
    dependencies=[requires(Action.CANCEL_RETUNE)],
    responses=problems("unknown_retune", "retune_ended", "retune_starting"),
)
def cancel_retune(context: ContextDep, retune_id: str, once: IdempotencyDep) -> Retune:
    """End a queued or running retune (repeated measurement of a recommendation) for good; the recommendation stays
    unchanged, and stale if it was stale.
    """
    return records.cancel_retune(context, retune_id, once)


@router.put(
    "/best:plan",
    dependencies=[requires(Action.PLAN_RUN)],
    responses=problems("unknown_best", "unknown_project"),
)
def plan_run(
    context: ContextDep, target_key: TargetKeyParam, planned: PlannedRun, project: ProjectParam = None
) -> PlannedRun:
    """Declare the training run that a recommendation is for; the cost of the recommendation's retunes (repeated
    measurements of recommendations) is compared with their saving in that run.
    """
    return records.declare_run(context, target_key, planned, project)
