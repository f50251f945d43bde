"""Routes of canaries."""

from typing import Annotated

from fastapi import APIRouter, Query

from shardtune.api_schemas.retuning.canaries import CanaryPage
from shardtune.service.access.actions import Action
from shardtune.service.access.auth import requires
from shardtune.service.canaries import read
from shardtune.service.http.error_codes import problems
from shardtune.service.http.paging import InLimit, InPageToken
from shardtune.service.process.context import InContext
from shardtune.service.routes.studies import InProject

router = APIRouter(prefix="/v1/canaries", tags=["retunes"], dependencies=[requires(Action.READ_STUDIES)])


@router.get("", responses=problems("invalid_page_token"))
def list_canaries(
    context: InContext,
    target_key: Annotated[
        str | None, Query(pattern=r"^[0-9a-f]{32}$", description="Only canaries of this tuning target.")
    ] = None,
    project: InProject = None,
    limit: InLimit = 50,
    page_token: InPageToken = None,
) -> CanaryPage:
    """List runs that repeat recommended configurations: the worker, and whether it was as fast as measured. Newest
    first.
    """
    return read.page(context, target_key, page_token, limit, project)
