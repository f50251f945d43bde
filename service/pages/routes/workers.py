"""Page `/workers`: workers with their hardware, software and activity."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from shardtune.service.access.actions import Action
from shardtune.service.pages.page_access import may
from shardtune.service.pages.rendering import Checked, render, see_other
from shardtune.service.pages.views.workers import cards
from shardtune.service.process.context import InContext
from shardtune.service.workers import registry as rules

router = APIRouter()

_PAGE = 50


@router.get("/workers")
def show_workers(request: Request, context: InContext, page: Annotated[int, Query(ge=1, le=100_000)] = 1) -> Response:
    """Show one page of workers."""
    with context.db.read() as session:
        project_id, offset = context.principal.project_id, (page - 1) * _PAGE
        shown, total = cards(session, rules.live_since(context), project_id, offset, _PAGE)
    return render(request, "workers.html", cards=shown, total=total, page=page, page_size=_PAGE)


@router.post("/workers/{worker_id}/drain", dependencies=[Checked, may(Action.DRAIN_WORKER)])
def drain(context: InContext, worker_id: str) -> Response:
    """Drain a worker: it gets no new runs."""
    rules.drain(context, worker_id, True)
    return see_other("/workers")


@router.post("/workers/{worker_id}/resume", dependencies=[Checked, may(Action.RESUME_WORKER)])
def resume(context: InContext, worker_id: str) -> Response:
    """Resume a drained worker."""
    rules.drain(context, worker_id, False)
    return see_other("/workers")


@router.post("/workers/{worker_id}/forget", dependencies=[Checked, may(Action.FORGET_WORKER)])
def forget(context: InContext, worker_id: str) -> Response:
    """Remove a worker that is gone."""
    rules.forget(context, worker_id)
    return see_other("/workers")
