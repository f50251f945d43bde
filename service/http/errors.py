"""Errors with a status and a stable code; service.http.error_answers turns them into responses.

ApiError             its status is that of its code (service.http.error_codes)
├── Unauthorized  401   no API key, or an invalid one
├── Forbidden     403   the key may not do this
├── NotFound      404   no such study, trial or run
├── Conflict      409   the present state forbids it: unfinished, lease lost, other report
├── Invalid       422   the request is wrong: field, value and remedy of each mistake
└── TooMany       429   a quota is used up; Retry-After says when to try again
"""

import difflib
import math
from collections.abc import Mapping, Sequence

from pydantic import JsonValue

from shardtune.service.http.error_codes import CODES, FieldError
from shardtune.service.http.validation_errors import FIELD_FIRST, NAMED_FIRST, shown_value


class ApiError(Exception):
    """Base of all error responses: an error code, a detail text, and the mistakes in single fields."""

    def __init__(
        self,
        code: str,
        detail: str,
        errors: Sequence[FieldError] = (),
        headers: Mapping[str, str] | None = None,
        api_remedy: str = "",
    ) -> None:
        """Create the error. `api_remedy`: end of the detail for callers of the API, which pages leave out."""
        self.summary = detail
        self.detail = f"{detail}; {api_remedy}" if api_remedy else detail
        super().__init__(self.detail)
        self.code, self.errors, self.headers = code, list(errors), headers

    @property
    def status(self) -> int:
        """HTTP status that belongs to the error's code."""
        return CODES[self.code].status


class Unauthorized(ApiError):
    """Error for a request without a valid API key."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(code, detail, headers={"WWW-Authenticate": "Bearer"})


class Forbidden(ApiError):
    """Error for a valid API key whose scopes or projects do not allow the request."""


class NotFound(ApiError):
    """Error for a resource that does not exist, or that the sender is not allowed to read."""


class Conflict(ApiError):
    """Error for a request that conflicts with the present state of the resource, such as a study that has not
    finished.
    """


class Invalid(ApiError):
    """Error for a request that is invalid in any state: field, value and remedy of each mistake."""


class WrongProtocol(ApiError):
    """Error for a worker of another protocol version; repeating the request does not help."""


class NotAcceptable(ApiError):
    """Error for a resource that cannot be represented in any media type of the request's Accept header."""


class PreconditionFailed(ApiError):
    """Error for an If-Match header whose tag differs from the resource's present version."""


class TooManyRequests(ApiError):
    """Error for a request beyond a quota of its project."""

    def __init__(self, code: str, detail: str, retry_after_s: float = 10) -> None:
        # Rounded up: a client that trusts the header must not come back too early.
        super().__init__(code, detail, headers={"Retry-After": str(max(1, math.ceil(retry_after_s)))})


def invalid(field: str, value: JsonValue, message: str, code: str = "invalid_request") -> Invalid:
    """Create the error for a request with a single mistake in one field."""
    return Invalid(code, message, [FieldError(field=field, value=shown_value(value), message=message)])


def invalid_from_value_error(field: str, error: ValueError) -> Invalid:
    """Convert the ValueError of a rule in the tuner, whose message names field, value and remedy, into an API error.
    `field`: path in the request to which the names in the message are relative; a message may also begin with that path.
    """
    # The tuner knows nothing of HTTP, so its messages are parsed, here alone: `field (value) must be …`.
    message = str(error)
    if message.startswith(f"{field}."):
        field = ""
    missing_key = NAMED_FIRST.match(message)
    if missing_key is not None:
        value = None if missing_key["missing"] else missing_key["field"].rpartition(".")[2]
        return invalid(f"{field}.{missing_key['field']}".removeprefix("."), value, message)
    named_value = FIELD_FIRST.match(message)
    if named_value is None:
        return invalid(field, None, message)
    named = named_value["field"]
    full_field = named if named == field else f"{field}.{named}".removeprefix(".")
    return invalid(full_field, named_value["value"].strip("'"), message)


def suggest_names(name: str, candidates: Sequence[str], otherwise: str) -> str:
    """Remedy text for a misspelt name: it suggests similar names; if there are none, it is `otherwise`."""
    close = difflib.get_close_matches(name, candidates, n=3)
    return f"did you mean {' or '.join(close)}?" if close else otherwise
