"""Page `/api`: the API's OpenAPI document."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from shardtune.service.pages.rendering import render
from shardtune.service.pages.views.api_docs import sections

router = APIRouter()


@router.get("/api")
def show_api(request: Request) -> Response:
    """Show every route of the API."""
    return render(request, "api_docs.html", sections=sections(request.app.openapi()))
