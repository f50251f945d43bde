"""Page `/login`: exchange an API key for a session."""

import re
from typing import Annotated

from fastapi import APIRouter, Form, Query, Request
from starlette.responses import Response

from shardtune.service.http.errors import ApiError
from shardtune.service.pages import cookies
from shardtune.service.pages.page_access import log_in, log_out
from shardtune.service.pages.rendering import CsrfChecked, render, see_other
from shardtune.service.process.context import OpenContextDep

router = APIRouter()

MAX_ADDRESS = 2000
"""Maximum number of characters of the address to which the browser is sent after a login."""
_OWN_ADDRESS = re.compile(r"/(?:[^/\\\s\x00-\x1f\x7f][^\\\s\x00-\x1f\x7f]*)?")


@router.get("/login")
def ask(request: Request, to: Annotated[str, Query(max_length=MAX_ADDRESS)] = "/") -> Response:
    """Show the login form."""
    return render(request, "login.html", to=_own_address(to), message="")


@router.post("/login", dependencies=[CsrfChecked])
def enter(
    request: Request,
    context: OpenContextDep,
    key: Annotated[str, Form(max_length=500)] = "",
    to: Annotated[str, Form(max_length=MAX_ADDRESS)] = "/",
) -> Response:
    """Log in, and redirect to the page that was requested before the login."""
    try:
        token = log_in(context, key)
    except ApiError as error:
        return render(request, "login.html", status=error.status, to=_own_address(to), message=error.detail)
    response = see_other(_own_address(to))
    cookies.write(request, response, cookies.SESSION, token)
    return response


@router.post("/logout", dependencies=[CsrfChecked])
def leave(request: Request, context: OpenContextDep) -> Response:
    """End the session and redirect to the login page."""
    log_out(context, cookies.read(request, cookies.SESSION))
    response = see_other("/login")
    cookies.drop(request, response, cookies.SESSION)
    return response


def _own_address(address: str) -> str:
    """Return the address if it belongs to this service, else the address of the home page."""
    # To a browser `//elsewhere` and `/\\elsewhere` are other sites, even with tabs, line ends or spaces in between, which
    # it drops: an open redirect would send a user who has just logged in to a copy of this page.
    return address if _OWN_ADDRESS.fullmatch(address) else "/"
