"""Turn every error into a problem+json response (RFC 9457)."""

import logging
from collections.abc import Mapping, Sequence
from http import HTTPStatus

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import iter_route_contexts
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Match

from shardtune.api_schemas.known_fields import fields_at
from shardtune.db.limits import is_busy, is_outage
from shardtune.service.http.error_codes import FieldError, Problem
from shardtune.service.http.errors import ApiError
from shardtune.service.http.validation_errors import describe_mistake, drop_union_noise, field_error, truncate

log = logging.getLogger(__name__)

_HTTP_CODES = {
    400: "bad_request",
    404: "not_found",
    405: "method_not_allowed",
    413: "content_too_large",
    422: "invalid_request",
    429: "too_many_bytes",
    503: "memory_busy",
}
"""Error codes of this API for errors that the web framework raises, by HTTP status."""
_RETRY_S = 2
_MAX_ERRORS = 50


def install(app: FastAPI) -> None:
    """Register handlers that answer every error of the app as problem+json."""
    app.add_exception_handler(ApiError, _service_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(ClientDisconnect, _client_disconnected)
    for failed in (DBAPIError, PoolTimeout):
        app.add_exception_handler(failed, _database_failed)
    app.add_exception_handler(Exception, _unexpected_error)


def problem(
    status: int, code: str, detail: str, errors: Sequence[FieldError] = (), headers: Mapping[str, str] | None = None
) -> JSONResponse:
    """Build an error response in the format application/problem+json (RFC 9457)."""
    body = Problem(
        type=f"urn:shardtune:error:{code}",
        title=HTTPStatus(status).phrase,
        status=status,
        # Cut, since details repeat what was sent, which may be as long as the body.
        detail=truncate(detail),
        code=code,
        errors=[FieldError(field=truncate(e.field), value=e.value, message=truncate(e.message)) for e in errors],
    )
    return JSONResponse(body.model_dump(mode="json"), status, headers=headers, media_type="application/problem+json")


def _service_error(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ApiError)
    return problem(error.status, error.code, error.detail, error.errors, error.headers)


def _http_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    code = _HTTP_CODES.get(error.status_code, "bad_request")
    detail = f"{request.method} {truncate(request.url.path)}: {error.detail}; see /openapi.json for what exists"
    headers = error.headers
    # Mounted files are no routes with methods: they name their own in the error.
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED and (methods := _allowed_methods(request)):
        headers = {"Allow": methods}
    return problem(error.status_code, code, detail, headers=headers)


def _client_disconnected(_request: Request, _error: Exception) -> JSONResponse:
    """Build the response for a client that disconnected before its request body was complete."""
    # Nobody reads this answer; without the handler the framework would log an error of the service.
    return problem(400, "bad_request", "the request ended before its body did; send it again")


def _allowed_methods(request: Request) -> str:
    """HTTP methods that an address supports, for the Allow header of a 405 response."""
    # The framework names only the methods of the first route that matches, but others may match, too.
    matching = [
        (route.path_format or "", route.methods or ())
        for route in iter_route_contexts(request.app.routes)
        if route.matches(request.scope)[0] is not Match.NONE
    ]
    # `/studies/{study_id}` matches `/studies/x:cancel` as well, but the address belongs to the custom method.
    custom_methods = [pair for pair in matching if ":" in pair[0].rpartition("/")[2]]
    return ", ".join(sorted({method for _, methods in custom_methods or matching for method in methods}))


def _unexpected_error(request: Request, error: Exception) -> JSONResponse:
    log.error("request failed", exc_info=error, extra={"method": request.method, "path": request.url.path})
    detail = "the service failed on this request; its log has the reason"
    return problem(500, "internal_error", detail)


def _database_failed(request: Request, error: Exception) -> JSONResponse:
    # A database error that is no outage is a bug of ours, and must appear as a 500 with its traceback.
    if not is_outage(error):
        raise error
    extra, headers = {"method": request.method, "path": request.url.path}, {"Retry-After": str(_RETRY_S)}
    if is_busy(error):
        log.warning("database busy: %s", error, extra=extra)
        detail = "another transaction holds what this one needs, or the database is overloaded; try again"
        return problem(503, "database_busy", detail, headers=headers)
    log.error("database unreachable", exc_info=error, extra=extra)
    return problem(503, "database_unreachable", "the database does not answer; try again", headers=headers)


def _validation_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    body = getattr(request.scope.get("route"), "body_field", None)
    body_type = None if body is None else body.field_info.annotation
    items = drop_union_noise(error.errors()[:_MAX_ERRORS])
    errors = [field_error(item, fields_at(body_type, item["loc"][1:-1])) for item in items]
    detail = "; ".join(describe_mistake(item) for item in errors[:3]) + ("; …" if len(errors) > 3 else "")
    return problem(422, "invalid_request", detail, errors)
