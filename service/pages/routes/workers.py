"""`/workers`: machines, what they do and what they are."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from service import workers as rules
from service.context import InContext
from service.pages.rendering import render
from service.pages.views.workers import cards

router = APIRouter()


@router.get("/workers")
def show_workers(request: Request, context: InContext) -> Response:
    """All workers."""
    with context.db.read() as session:
        shown = cards(session, rules.live_since(context))
    return render(request, "workers.html", cards=shown)
