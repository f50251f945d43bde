"""`/login`: an API key in, a session out."""

from typing import Annotated

from fastapi import APIRouter, Form, Query, Request
from starlette.responses import Response

from shardtune.service.http.errors import ApiError
from shardtune.service.pages.page_access import COOKIE, log_in, log_out
from shardtune.service.pages.rendering import Checked, render, see_other
from shardtune.service.process.context import InOpenContext

router = APIRouter()


@router.get("/login")
def ask(request: Request, to: Annotated[str, Query(max_length=2000)] = "/") -> Response:
    """The form."""
    return render(request, "login.html", to=_inside(to), message="")


@router.post("/login", dependencies=[Checked])
def enter(
    request: Request,
    context: InOpenContext,
    key: Annotated[str, Form(max_length=500)] = "",
    to: Annotated[str, Form(max_length=2000)] = "/",
) -> Response:
    """Log in, and go where the reader wanted to."""
    try:
        token = log_in(context, key)
    except ApiError as error:
        return render(request, "login.html", status=error.status, to=_inside(to), message=error.detail)
    response = see_other(_inside(to))
    secure = request.url.scheme == "https"
    response.set_cookie(COOKIE, token, httponly=True, samesite="strict", secure=secure, path="/")
    return response


@router.post("/logout", dependencies=[Checked])
def leave(request: Request, context: InOpenContext) -> Response:
    """Log out."""
    log_out(context, request.cookies.get(COOKIE, ""))
    response = see_other("/login")
    response.delete_cookie(COOKIE, path="/")
    return response


def _inside(address: str) -> str:
    """Only addresses of this service: `//elsewhere` and `/\\elsewhere` are other sites to a browser."""
    return address if address.startswith("/") and address[1:2] not in ("/", "\\") else "/"
