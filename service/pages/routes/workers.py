"""Page `/workers`: workers with their hardware, software and activity."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from shardtune.service.access.actions import Action
from shardtune.service.pages.page_access import requires
from shardtune.service.pages.rendering import CsrfChecked, render, see_other
from shardtune.service.pages.views.workers import cards
from shardtune.service.process.context import ContextDep
from shardtune.service.workers import registry as rules

router = APIRouter()

_PAGE = 50


@router.get("/workers")
def show_workers(request: Request, context: ContextDep, page: Annotated[int, Query(ge=1, le=100_000)] = 1) -> Response:
    """Show one page of workers."""
    with context.db.read() as session:
        project_id, offset = context.principal.project_id, (page - 1) * _PAGE
        shown, total = cards(session, rules.live_since(context), project_id, offset, _PAGE)
    return render(request, "workers.html", cards=shown, total=total, page=page, page_size=_PAGE)


@router.post("/workers/{worker_id}/drain", dependencies=[CsrfChecked, requires(Action.DRAIN_WORKER)])
def drain(context: ContextDep, worker_id: str) -> Response:
    """Drain a worker: it gets no new runs."""
    rules.drain(context, worker_id, True)
    return see_other("/workers")


@router.post("/workers/{worker_id}/resume", dependencies=[CsrfChecked, requires(Action.RESUME_WORKER)])
def resume(context: ContextDep, worker_id: str) -> Response:
    """Resume a drained worker."""
    rules.drain(context, worker_id, False)
    return see_other("/workers")


@router.post("/workers/{worker_id}/forget", dependencies=[CsrfChecked, requires(Action.FORGET_WORKER)])
def forget(context: ContextDep, worker_id: str) -> Response:
    """Remove a worker that is gone."""
    rules.forget(context, worker_id)
    return see_other("/workers")
