"""Errors with a status and a stable code, and how every error becomes problem+json (RFC 9457).

ApiError             its status is its code's (service.http.error_codes)
├── Unauthorized  401   no key, or none that counts
├── Forbidden     403   the key may not do this
├── NotFound      404   no such study, trial or run
├── Conflict      409   the state of things forbids it: unfinished, lease lost, other report
├── Invalid       422   the request is wrong: field, value and remedy of each mistake
└── TooMany       429   a quota is used up; says when to come again
"""

import difflib
import logging
import math
from collections.abc import Mapping, Sequence
from http import HTTPStatus

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import iter_route_contexts
from pydantic import JsonValue
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Match

from shardtune.db.limits import is_busy, is_outage
from shardtune.service.http.error_codes import CODES, FieldError, Problem
from shardtune.service.http.validation_errors import (
    FIELD_FIRST,
    cut,
    field_error,
    of_the_likeliest_branch,
    sentence,
    short,
)

log = logging.getLogger(__name__)

_HTTP_CODES = {
    400: "bad_request",
    404: "not_found",
    405: "method_not_allowed",
    413: "content_too_large",
    422: "invalid_request",
}
"""Of errors that the framework raises."""
_RETRY_S = 2
_MOST_ERRORS = 50


class ApiError(Exception):
    """An answer other than success."""

    def __init__(
        self, code: str, detail: str, errors: Sequence[FieldError] = (), headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(detail)
        self.code, self.detail, self.errors, self.headers = code, detail, list(errors), headers

    @property
    def status(self) -> int:
        """HTTP status of the code."""
        return CODES[self.code].status


class Unauthorized(ApiError):
    """The request carries no key that counts."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(code, detail, headers={"WWW-Authenticate": "Bearer"})


class Forbidden(ApiError):
    """The key is good, but not for this."""


class NotFound(ApiError):
    """Nothing has this name."""


class Conflict(ApiError):
    """Refused because of the state of things."""


class Invalid(ApiError):
    """The request itself is wrong."""


class WrongProtocol(ApiError):
    """The worker speaks another protocol version; asking again does not help."""


class NotAcceptable(ApiError):
    """The answer does not exist in any form the client takes."""


class PreconditionFailed(ApiError):
    """If-Match names another version."""


class TooMany(ApiError):
    """A quota is used up."""

    def __init__(self, code: str, detail: str, retry_after_s: float = 10) -> None:
        super().__init__(code, detail, headers={"Retry-After": str(max(1, math.ceil(retry_after_s)))})


def invalid(field: str, value: JsonValue, message: str, code: str = "invalid_request") -> Invalid:
    """One mistake in one field."""
    return Invalid(code, message, [FieldError(field=field, value=short(value), message=message)])


def from_value_error(field: str, error: ValueError) -> Invalid:
    """A rule of the tuner's that the request breaks; its message names field, value and remedy already."""
    message = str(error)
    found = FIELD_FIRST.match(message)
    if found is None:
        return invalid(field, None, message)
    return invalid(f"{field}.{found['field']}".removeprefix("."), found["value"].strip("'"), message)


def install(app: FastAPI) -> None:
    """Make every error of the app a problem+json."""
    app.add_exception_handler(ApiError, _service_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(ClientDisconnect, _gone)
    for failed in (DBAPIError, PoolTimeout):
        app.add_exception_handler(failed, _database_failed)
    app.add_exception_handler(Exception, _unexpected)


def problem(
    status: int, code: str, detail: str, errors: Sequence[FieldError] = (), headers: Mapping[str, str] | None = None
) -> JSONResponse:
    """An error response."""
    body = Problem(
        type=f"urn:shardtune:error:{code}",
        title=HTTPStatus(status).phrase,
        status=status,
        detail=cut(detail),
        code=code,
        errors=[FieldError(field=cut(e.field), value=e.value, message=cut(e.message)) for e in errors],
    )
    return JSONResponse(body.model_dump(mode="json"), status, headers=headers, media_type="application/problem+json")


def _service_error(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ApiError)
    return problem(error.status, error.code, error.detail, error.errors, error.headers)


def _http_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    code = _HTTP_CODES.get(error.status_code, "bad_request")
    detail = f"{request.method} {cut(request.url.path)}: {error.detail}; see /openapi.json for what exists"
    headers = {"Allow": _allowed(request)} if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED else error.headers
    return problem(error.status_code, code, detail, headers=headers)


def _gone(_request: Request, _error: Exception) -> JSONResponse:
    """Its sender has gone in the middle of a body: nobody reads this, and it is no failure of ours."""
    return problem(400, "bad_request", "the request ended before its body did; send it again")


def _allowed(request: Request) -> str:
    """Methods of the address: the framework names those of the first route that matches it, others may, too."""
    found = [
        (route.path_format or "", route.methods or ())
        for route in iter_route_contexts(request.app.routes)
        if route.matches(request.scope)[0] is not Match.NONE
    ]
    # `/studies/{study_id}` takes `/studies/x:cancel` as well; the address is the custom method's.
    named = [pair for pair in found if ":" in pair[0].rpartition("/")[2]]
    return ", ".join(sorted({method for _, methods in named or found for method in methods}))


def _unexpected(request: Request, error: Exception) -> JSONResponse:
    log.error("request failed", exc_info=error, extra={"method": request.method, "path": request.url.path})
    detail = "the service failed on this request; its log has the reason"
    return problem(500, "internal_error", detail)


def _database_failed(request: Request, error: Exception) -> JSONResponse:
    if not is_outage(error):
        raise error
    extra, headers = {"method": request.method, "path": request.url.path}, {"Retry-After": str(_RETRY_S)}
    if is_busy(error):
        log.warning("database busy: %s", error, extra=extra)
        detail = "another transaction holds what this one needs, or the database is overloaded; try again"
        return problem(503, "database_busy", detail, headers=headers)
    log.error("database unreachable", exc_info=error, extra=extra)
    return problem(503, "database_unreachable", "the database does not answer; try again", headers=headers)


def _validation_error(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    errors = [field_error(item) for item in of_the_likeliest_branch(error.errors()[:_MOST_ERRORS])]
    detail = "; ".join(sentence(item) for item in errors[:3]) + ("; …" if len(errors) > 3 else "")
    return problem(422, "invalid_request", detail, errors)


def close_matches(name: str, known: Sequence[str], what: str) -> str:
    """A remedy for a misspelt name."""
    close = difflib.get_close_matches(name, known, n=3)
    return f"did you mean {' or '.join(close)}?" if close else what
