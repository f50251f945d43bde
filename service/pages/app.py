"""Install the pages in the application: routes, static files, and error pages for browsers."""

from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlencode

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from shardtune.service.http.error_codes import FieldError
from shardtune.service.http.errors import ApiError
from shardtune.service.http.pre_body_auth import AuthPrefix
from shardtune.service.http.validation_errors import field_error
from shardtune.service.pages import documentation, page_access
from shardtune.service.pages.assets import Static, folder
from shardtune.service.pages.page_access import LOGIN_REQUIRED, LoginNeeded
from shardtune.service.pages.rendering import PageRejected, render, see_other
from shardtune.service.pages.routes import (
    api_docs,
    best,
    compare,
    costs,
    exports,
    live,
    login,
    new,
    plans,
    schedules,
    settings,
    studies,
    trials,
    workers,
)

_API = ("/v1/", "/healthz", "/readyz", "/metrics", "/openapi.json")
ENTRIES = (
    *(AuthPrefix(prefix, None) for prefix in (*_API, "/static/", f"{documentation.ADDRESS}/", "/login", "/logout")),
    AuthPrefix("/", page_access.identify_sender),
)
"""Prefixes of paths, each with the function that authenticates a request before its body is read. Pages (`/`) need a
login. The login page and the static files need none, and other routes such as `/v1/` authenticate requests
themselves."""
Handler = Callable[[Request, Exception], Response | Awaitable[Response]]


def install(app: FastAPI) -> None:
    """Add the pages to the application; call this after the application has its own error handlers."""
    for routes in (
        best,
        studies,
        exports,
        trials,
        compare,
        new,
        plans,
        schedules,
        costs,
        workers,
        settings,
        live,
        api_docs,
    ):
        app.include_router(routes.router, include_in_schema=False, dependencies=[LOGIN_REQUIRED])
    app.include_router(login.router, include_in_schema=False)
    app.mount("/static", Static(directory=folder()), name="static")
    documentation.install(app, app.state.context.settings)
    for kind in (ApiError, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, _as_page(app.exception_handlers[kind]))
    app.add_exception_handler(PageRejected, _rejected)
    app.add_exception_handler(LoginNeeded, _log_in)


def _as_page(api_handler: Any) -> Handler:
    """Wrap an error handler so that browsers get an HTML page, while clients of the API get the API's format."""

    async def handle(request: Request, error: Exception) -> Response:
        if request.url.path.startswith(_API) or "text/html" not in request.headers.get("accept", ""):
            answer: Response = api_handler(request, error)
            return answer
        return _error_page(request, error)

    return handle


def _error_page(request: Request, error: Exception) -> Response:
    mistakes: list[FieldError] = []
    status, message = 500, "The service failed on this request; its log has the reason."
    if isinstance(error, ApiError):
        status, message, mistakes = error.status, error.summary, error.errors
    elif isinstance(error, RequestValidationError):
        status, message = 422, "Some values are not valid."
        mistakes = [field_error(item) for item in error.errors()]
    elif isinstance(error, HTTPException):
        status = error.status_code
        message = "There is no page at this address." if status == 404 else str(error.detail)
    title = "Not found" if status == 404 else "Request failed"
    return render(request, "error.html", status=status, title=title, message=_as_sentence(message), mistakes=mistakes)


def _as_sentence(message: str) -> str:
    return message[:1].upper() + message[1:] + ("" if message.endswith((".", "!", "?")) else ".")


async def _log_in(request: Request, _error: Exception) -> Response:
    # A form cannot be sent again after a redirect: its fields would be lost without a word.
    if request.method != "GET":
        return render(request, "login.html", status=401, to="/", message="You were logged out; log in and try again.")
    address = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    # The login page rejects a longer address; it returns to the home page then.
    to = address if len(address) <= login.MAX_ADDRESS else "/"
    return see_other("/login?" + urlencode({"to": to}))


async def _rejected(request: Request, error: Exception) -> Response:
    return render(request, "error.html", status=403, title="Request failed", message=str(error), mistakes=[])
