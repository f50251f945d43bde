"""`/login`: an API key in, a session out."""

import re
from typing import Annotated

from fastapi import APIRouter, Form, Query, Request
from starlette.responses import Response

from shardtune.service.http.errors import ApiError
from shardtune.service.pages import cookies
from shardtune.service.pages.page_access import log_in, log_out
from shardtune.service.pages.rendering import Checked, render, see_other
from shardtune.service.process.context import InOpenContext

router = APIRouter()

_OWN_ADDRESS = re.compile(r"/(?:[^/\\\s\x00-\x1f\x7f][^\\\s\x00-\x1f\x7f]*)?")


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
    cookies.write(request, response, cookies.SESSION, token)
    return response


@router.post("/logout", dependencies=[Checked])
def leave(request: Request, context: InOpenContext) -> Response:
    """Log out."""
    log_out(context, cookies.read(request, cookies.SESSION))
    response = see_other("/login")
    cookies.drop(request, response, cookies.SESSION)
    return response


def _inside(address: str) -> str:
    """Only addresses of this service. To a browser `//elsewhere` and `/\\elsewhere` are other sites, also where tabs, line
    ends or spaces stand between: it drops these.
    """
    return address if _OWN_ADDRESS.fullmatch(address) else "/"
