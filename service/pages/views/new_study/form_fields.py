"""Convert the text of form fields, with errors that name the field."""

import json
from collections.abc import Sequence
from typing import Any

from shardtune.service.http.error_codes import FieldError
from shardtune.service.http.input_guard import check_value


class FormErrors(Exception):
    """Error that some fields of the form are invalid, with an entry for each of them."""

    def __init__(self, errors: Sequence[FieldError]) -> None:
        super().__init__("; ".join(error.message for error in errors))
        self.errors = tuple(errors)


def positive_int(field: str, text: str) -> int:
    """Convert the text of a form field to a positive integer; commas and underscores between digits are ignored."""
    cleaned = text.strip().replace(",", "").replace("_", "")
    # `int` alone would accept a sign, and a pasted number of any length.
    if not cleaned.isdecimal() or len(cleaned) > 9 or int(cleaned) == 0:
        raise error(field, text, f"{field} ({text!r}) must be a whole number above 0, such as 64")
    return int(cleaned)


def number(field: str, text: str) -> float:
    """Convert a form field's text to a number; the study's schema checks the range afterwards."""
    try:
        return float(text)
    except ValueError:
        raise error(field, text, f"{field} ({text!r}) must be a number, such as 10") from None


def json_object(field: str, text: str, content: str) -> dict[str, Any]:
    """Parse pasted text as JSON, up to the maximum size of a request's body."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise error(field, text[:60], f"{field} is not JSON ({problem}); paste {content}") from None
    if not isinstance(value, dict):
        raise error(field, text[:60], f"{field} must be a JSON object; paste {content}")
    check_value(value, field)
    return value


def error(field: str, value: str, message: str) -> FormErrors:
    """Return the error of one invalid field."""
    return FormErrors([FieldError(field=field, value=value, message=message)])


def sample_lengths(text: str, layout: str) -> dict[str, Any] | None:
    """Convert a form's lengths of samples to the data of a workload; None if all samples have one length.

    Raises:
        FormErrors: the text is not JSON.
    """
    if not text.strip():
        return None
    try:
        lengths = json.loads(text)
    except (ValueError, RecursionError):
        shown = text.strip()[:60]
        raise error(
            "lengths", shown, f"lengths ({shown}) must be a JSON list, such as [512, 37] or [[512, 40], [37, 300]]"
        ) from None
    check_value(lengths, "lengths")
    return {"lengths": lengths, "layout": layout}
