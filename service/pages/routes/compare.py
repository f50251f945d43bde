"""Page `/compare`: configurations side by side."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from shardtune.service.pages.rendering import render
from shardtune.service.pages.views.compare import comparison
from shardtune.service.process.context import ContextDep
from shardtune.service.studies.comparison import compare

router = APIRouter()


@router.get("/compare")
def show_comparison(
    request: Request, context: ContextDep, pick: Annotated[list[str] | None, Query(max_length=50)] = None
) -> Response:
    """Compare up to four answers or trials, one knob after the other."""
    return render(request, "compare.html", c=comparison(compare(context, pick or ())))
