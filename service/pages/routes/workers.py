"""`/workers`: machines, what they do and what they are; drain them."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from shardtune.api_schemas.keys import Scope
from shardtune.service.http.errors import NotFound
from shardtune.service.pages.page_access import may
from shardtune.service.pages.rendering import Checked, render, see_other
from shardtune.service.pages.views.workers import cards
from shardtune.service.process.context import InContext
from shardtune.service.workers import registry as rules

router = APIRouter()


_ACTIONS = {"drain": True, "resume": False}


@router.get("/workers")
def show_workers(request: Request, context: InContext) -> Response:
    """All workers."""
    with context.db.read() as session:
        shown = cards(session, rules.live_since(context), context.principal.project_id)
    return render(request, "workers.html", cards=shown)


@router.post("/workers/{worker_id}/{action}", dependencies=[Checked, may(Scope.ADMIN)])
def act(context: InContext, worker_id: str, action: str) -> Response:
    """Give a worker no more work, or give it work again."""
    if action not in _ACTIONS:
        raise NotFound("unknown_action", f"A worker can be drained or resumed, not {action!r}.")
    rules.drain(context, worker_id, _ACTIONS[action])
    return see_other("/workers")
