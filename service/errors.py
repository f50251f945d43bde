"""Errors with a status and a stable code, and how every error becomes problem+json (RFC 9457).

ServiceError             its status is its code's (service.codes)
├── Unauthorized  401   no key, or none that counts
├── Forbidden     403   the key may not do this
├── NotFound      404   no such study, trial or run
├── Conflict      409   the state of things forbids it: unfinished, lease lost, other report
├── Invalid       422   the request is wrong: field, value and remedy of each mistake
└── TooMany       429   a quota is used up; says when to come again
"""

import difflib
import json
import logging
import math
import re
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import JsonValue
from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from starlette.exceptions import HTTPException

from service.codes import CODES, FieldError, Problem

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
_LONGEST_VALUE = 200
_FIELD_FIRST = re.compile(r"^(?P<field>[a-z][a-z0-9_.]*) \((?P<value>[^)]*)\)")


class ServiceError(Exception):
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


class Unauthorized(ServiceError):
    """The request carries no key that counts."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(code, detail, headers={"WWW-Authenticate": "Bearer"})


class Forbidden(ServiceError):
    """The key is good, but not for this."""


class NotFound(ServiceError):
    """Nothing has this name."""


class Conflict(ServiceError):
    """Refused because of the state of things."""


class Invalid(ServiceError):
    """The request itself is wrong."""


class WrongProtocol(ServiceError):
    """The worker speaks another protocol version; asking again does not help."""


class NotAcceptable(ServiceError):
    """The answer does not exist in any form the client takes."""


class PreconditionFailed(ServiceError):
    """If-Match names another version."""


class TooMany(ServiceError):
    """A quota is used up."""

    def __init__(self, code: str, detail: str, retry_after_s: float = 10) -> None:
        super().__init__(code, detail, headers={"Retry-After": str(max(1, math.ceil(retry_after_s)))})


def invalid(field: str, value: JsonValue, message: str, code: str = "invalid_request") -> Invalid:
    """One mistake in one field."""
    return Invalid(code, message, [FieldError(field=field, value=_short(value), message=message)])


def from_value_error(field: str, error: ValueError) -> Invalid:
    """A rule of the tuner's that the request breaks; its message names field, value and remedy already."""
    message = str(error)
    found = _FIELD_FIRST.match(message)
    if found is None:
        return invalid(field, None, message)
    return invalid(f"{field}.{found['field']}".removeprefix("."), found["value"].strip("'"), message)


def install(app: FastAPI) -> None:
    """Make every error of the app a problem+json."""
    app.add_exception_handler(ServiceError, _service_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(HTTPException, _http_error)
    for away in (OperationalError, InterfaceError, PoolTimeout):
        app.add_exception_handler(away, _database_unreachable)
    app.add_exception_handler(Exception, _unexpected)


def problem(
    status: int, code: str, detail: str, errors: Sequence[FieldError] = (), headers: Mapping[str, str] | None = None
) -> JSONResponse:
    """An error response."""
    body = Problem(
        type=f"urn:shardtune:error:{code}",
        title=HTTPStatus(status).phrase,
        status=status,
        detail=detail,
        code=code,
        errors=list(errors),
    )
    return JSONResponse(body.model_dump(mode="json"), status, headers=headers, media_type="application/problem+json")


def _service_error(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ServiceError)
    return problem(error.status, error.code, error.detail, error.errors, error.headers)


def _http_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    code = _HTTP_CODES.get(error.status_code, "bad_request")
    detail = f"{request.method} {request.url.path}: {error.detail}; see /openapi.json for what exists"
    return problem(error.status_code, code, detail, headers=error.headers)


def _unexpected(request: Request, error: Exception) -> JSONResponse:
    log.error("request failed", exc_info=error, extra={"method": request.method, "path": request.url.path})
    detail = "the service failed on this request; its log has the reason"
    return problem(500, "internal_error", detail)


def _database_unreachable(request: Request, error: Exception) -> JSONResponse:
    log.error("database unreachable", exc_info=error, extra={"method": request.method, "path": request.url.path})
    detail = "the database does not answer, or is locked; try again"
    return problem(503, "database_unreachable", detail, headers={"Retry-After": str(_RETRY_S)})


def _validation_error(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    errors = [field_error(item) for item in _of_the_likeliest_branch(error.errors())]
    detail = "; ".join(_sentence(item) for item in errors[:3]) + ("; …" if len(errors) > 3 else "")
    return problem(422, "invalid_request", detail, errors)


def field_error(item: Mapping[str, Any]) -> FieldError:
    """One of pydantic's errors in our words."""
    path = [part for part in item["loc"] if not _is_branch(part)]
    where = path[1:] if path and path[0] in ("body", "query", "path") else path
    field = ".".join(str(part) for part in where) or str(path[0] if path else "body")
    kind, message = str(item["type"]), str(item["msg"]).removeprefix("Value error, ")
    value = item.get("input")
    if kind == "missing":
        message, value = "is required; add it", None
    elif kind == "extra_forbidden":
        message = "is not a field here; remove it or correct its name"
    elif kind == "json_invalid":
        reason = item.get("ctx", {}).get("error", "syntax error")
        field, message, value = "body", f"is not JSON ({reason}); send a JSON object", None
    elif field == "body" and isinstance(value, bytes | str):
        message, value = "was not read as JSON; send it with the header Content-Type: application/json", None
    elif kind not in ("value_error", "assertion_error"):
        message = f"{message[:1].lower()}{message[1:]}; correct it"
    else:
        field, value = _inside(field, value, message)
    return FieldError(field=field, value=_short(value), message=message)


def _inside(field: str, value: Any, message: str) -> tuple[str, Any]:
    """A rule over a whole object names the field inside that breaks it."""
    found = _FIELD_FIRST.match(message)
    if found is None or found["field"] == field.rpartition(".")[2]:
        return field, value
    return f"{field}.{found['field']}", found["value"].strip("'")


def close_matches(name: str, known: Sequence[str], what: str) -> str:
    """A remedy for a misspelt name."""
    close = difflib.get_close_matches(name, known, n=3)
    return f"did you mean {' or '.join(close)}?" if close else what


def _of_the_likeliest_branch(items: Sequence[Any]) -> list[Any]:
    """Where a field takes a word or an object and got an object, the errors about the word are noise."""
    kept = [item for item in items if not (item["type"] == "literal_error" and isinstance(item.get("input"), dict))]
    kept = [item for item in kept if not _was_meant_as_a_word(item, items)]
    return kept or list(items)


def _was_meant_as_a_word(item: Any, items: Sequence[Any]) -> bool:
    path = [part for part in item["loc"] if not _is_branch(part)]
    if item["type"] not in ("model_type", "model_attributes_type", "dict_type"):
        return False
    return any(
        other["type"] == "literal_error"
        and isinstance(other.get("input"), str)
        and [part for part in other["loc"] if not _is_branch(part)] == path
        for other in items
    )


def _is_branch(part: object) -> bool:
    """Pydantic puts the tried member of a union into the path: a class name, `literal[…]`, `dict[…]`."""
    return isinstance(part, str) and (part[:1].isupper() or "[" in part)


def _sentence(item: FieldError) -> str:
    if item.value is None or item.message.startswith(f"{item.field} ("):
        return item.message if item.message.startswith(item.field) else f"{item.field}: {item.message}"
    return f"{item.field} ({json.dumps(item.value, ensure_ascii=False)}): {item.message}"


def _short(value: Any) -> JsonValue:
    """The value as sent; a long or strange one as the start of its text."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        # JSON has no NaN; its name says as much.
        return value if value == value and abs(value) != float("inf") else str(value)
    text = value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 1] + "…"
