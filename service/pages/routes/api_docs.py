"""`/docs`: the API's document as a page."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from shardtune.service.pages.rendering import render
from shardtune.service.pages.views.api_docs import sections

router = APIRouter()


@router.get("/docs")
def show_api(request: Request) -> Response:
    """Every route of the API."""
    return render(request, "api_docs.html", sections=sections(request.app.openapi()))
