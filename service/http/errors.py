"""Errors with a status and a stable code; how they are answered is in service.http.error_answers.

ApiError             its status is its code's (service.http.error_codes)
├── Unauthorized  401   no key, or none that counts
├── Forbidden     403   the key may not do this
├── NotFound      404   no such study, trial or run
├── Conflict      409   the state of things forbids it: unfinished, lease lost, other report
├── Invalid       422   the request is wrong: field, value and remedy of each mistake
└── TooMany       429   a quota is used up; says when to come again
"""

import difflib
import math
from collections.abc import Mapping, Sequence

from pydantic import JsonValue

from shardtune.service.http.error_codes import CODES, FieldError
from shardtune.service.http.validation_errors import FIELD_FIRST, NAMED_FIRST, short


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
    """Rejected because of the state of things."""


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
    named = NAMED_FIRST.match(message)
    if named is not None:
        value = None if named["missing"] else named["field"].rpartition(".")[2]
        return invalid(f"{field}.{named['field']}".removeprefix("."), value, message)
    found = FIELD_FIRST.match(message)
    if found is None:
        return invalid(field, None, message)
    where = field if found["field"] == field else f"{field}.{found['field']}".removeprefix(".")
    return invalid(where, found["value"].strip("'"), message)


def close_matches(name: str, known: Sequence[str], what: str) -> str:
    """A remedy for a misspelt name."""
    close = difflib.get_close_matches(name, known, n=3)
    return f"did you mean {' or '.join(close)}?" if close else what
