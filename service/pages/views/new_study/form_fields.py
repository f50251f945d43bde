"""Fields of a form as typed: what each means, or what is wrong with it."""

import json
from collections.abc import Sequence
from typing import Any

from shardtune.service.http.error_codes import FieldError
from shardtune.service.http.input_guard import check


class FormErrors(Exception):
    """What the form says cannot be used; one entry per field."""

    def __init__(self, errors: Sequence[FieldError]) -> None:
        super().__init__("; ".join(error.message for error in errors))
        self.errors = tuple(errors)


def whole(field: str, text: str) -> int:
    """A count; commas and underscores between digits are left out."""
    cleaned = text.strip().replace(",", "").replace("_", "")
    if not cleaned.isdecimal() or len(cleaned) > 9 or int(cleaned) == 0:
        raise error(field, text, f"{field} ({text!r}) must be a whole number above 0, such as 64")
    return int(cleaned)


def number(field: str, text: str) -> float:
    """Any number; what it may be is for whom it is meant."""
    try:
        return float(text)
    except ValueError:
        raise error(field, text, f"{field} ({text!r}) must be a number, such as 10") from None


def json_object(field: str, text: str, what: str) -> dict[str, Any]:
    """Pasted JSON, held to the limits of a request's body."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise error(field, text[:60], f"{field} is not JSON ({problem}); paste {what}") from None
    if not isinstance(value, dict):
        raise error(field, text[:60], f"{field} must be a JSON object; paste {what}")
    check(value, field)
    return value


def error(field: str, value: str, message: str) -> FormErrors:
    """One field that is wrong."""
    return FormErrors([FieldError(field=field, value=value, message=message)])
