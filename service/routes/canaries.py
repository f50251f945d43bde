"""Routes of canaries (repeated runs of recommended configurations)."""

from typing import Annotated

from fastapi import APIRouter, Query

from shardtune.api_schemas.retuning.canaries import CanaryPage
from shardtune.service.access.actions import Action
from shardtune.service.access.auth import requires
from shardtune.service.canaries import read
from shardtune.service.http.error_codes import problems
from shardtune.service.http.paging import LimitParam, PageTokenParam
from shardtune.service.process.context import ContextDep
from shardtune.service.routes.studies import ProjectParam

router = APIRouter(prefix="/v1/canaries", tags=["retunes"], dependencies=[requires(Action.READ_STUDIES)])


@router.get("", responses=problems("invalid_page_token"))
def list_canaries(
    context: ContextDep,
    target_key: Annotated[
        str | None, Query(pattern=r"^[0-9a-f]{32}$", description="Only canaries of this tuning target.")
    ] = None,
    project: ProjectParam = None,
    limit: LimitParam = 50,
    page_token: PageTokenParam = None,
) -> CanaryPage:
    """List canaries, which repeat recommended configurations: the worker of each, and whether the run was as fast as
    measured before. Newest first.
    """
    return read.list_canaries(context, target_key, page_token, limit, project)
