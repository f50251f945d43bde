"""Page `/`: the best configurations at a glance."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from shardtune.db.listing import Page
from shardtune.db.queries.overview import BEST_SORTS
from shardtune.service.pages.rendering import render
from shardtune.service.pages.views import best
from shardtune.service.pages.views.home.example import EXAMPLE
from shardtune.service.pages.views.home.target_card import SORTS, target_card
from shardtune.service.process.context import ContextDep

router = APIRouter()


@router.get("/")
def show_best(
    request: Request,
    context: ContextDep,
    q: Annotated[str, Query(max_length=200)] = "",
    device: Annotated[str, Query(max_length=200)] = "",
    sort: str = "age",
    order: str = "desc",
    page: Annotated[int, Query(ge=1, le=100_000)] = 1,
) -> Response:
    """Show a card for each model, workload and cluster for which a study has an answer."""
    sort = sort if sort in BEST_SORTS else "age"
    selection = Page(sort, order != "asc", best.PAGE, (page - 1) * best.PAGE)
    settings, now = context.settings, context.now()
    with context.db.read() as session:
        home = best.home(session, context.principal.project_id, q, device or None, selection, now)
    return render(
        request,
        "best.html",
        home=home,
        cards=[target_card(line, settings.price_per_gpu_hour, settings.currency, now) for line in home.rows],
        example=EXAMPLE,
        sorts=SORTS,
        q=q,
        device=device,
        sort=sort,
        order=order,
        page=page,
        page_size=best.PAGE,
    )
