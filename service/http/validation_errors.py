"""Pydantic's mistakes in our words: which field, what was sent, what to do."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import JsonValue

from shardtune.api_schemas.base import Schema
from shardtune.service.http.error_codes import FieldError

FIELD_FIRST = re.compile(r"^(?P<field>[a-z][a-z0-9_.]*) \((?P<value>[^)]*)\)")
"""How messages of our own rules begin."""
NAMED_FIRST = re.compile(r"^(?P<field>[a-z][a-z0-9_.]*) is (?:no key|(?P<missing>missing))\b")
"""Likewise, of a name that is wrong or absent, which has no value to repeat."""
_WORD = "constrained-str"
"""Pydantic's name in a path for text with a pattern."""
_NO_OBJECT = ("model_type", "model_attributes_type", "dict_type")
_LONGEST_VALUE = 200
_LONGEST_TEXT = 2000


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
    elif kind in _NO_OBJECT:
        message = f"must be an object{_with_fields(item)}; send one"
    elif kind not in ("value_error", "assertion_error"):
        message = f"{message[:1].lower()}{message[1:]}; correct it"
    else:
        field, value = _inside(field, value, message)
    return FieldError(field=field, value=short(value), message=message)


def _with_fields(item: Mapping[str, Any]) -> str:
    """The fields that an object must have, by the name of its class, which pydantic tells."""
    waiting: list[type[Schema]] = [Schema]
    while waiting:
        one = waiting.pop()
        if one.__name__ == item.get("ctx", {}).get("class_name"):
            needed = [name for name, field in one.model_fields.items() if field.is_required()]
            return f" with {' and '.join(needed)}" if needed else ""
        waiting += one.__subclasses__()
    return ""


def _inside(field: str, value: Any, message: str) -> tuple[str, Any]:
    """A rule over a whole object names the field inside that breaks it."""
    found = FIELD_FIRST.match(message)
    if found is None or found["field"] == field.rpartition(".")[2]:
        return field, value
    return f"{field}.{found['field']}".removeprefix("body."), found["value"].strip("'")


def of_the_likeliest_branch(items: Sequence[Any]) -> list[Any]:
    """Where a field takes a word or an object and got an object, the errors about the word are noise."""
    kept = [item for item in items if not (_is_about_a_word(item) and isinstance(item.get("input"), dict))]
    kept = [item for item in kept if not _was_meant_as_a_word(item, items) and not counts_what_was_wrong(item, items)]
    return kept or list(items)


def _is_about_a_word(item: Any) -> bool:
    return bool(item["type"] == "literal_error" or item["loc"][-1] == _WORD)


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


def counts_what_was_wrong(item: Any, items: Sequence[Any]) -> bool:
    """A list is too short since its entries were refused, each with an error of its own."""
    place = tuple(item["loc"])
    return item["type"] == "too_short" and any(
        len(other["loc"]) > len(place) and tuple(other["loc"][: len(place)]) == place for other in items
    )


def _is_branch(part: object) -> bool:
    """Pydantic puts the tried member of a union into the path: a class name, `literal[…]`, `dict[…]`, or that of a word."""
    return isinstance(part, str) and (part[:1].isupper() or "[" in part or part == _WORD)


def sentence(item: FieldError) -> str:
    """A mistake on one line."""
    if item.value is None or item.message.startswith(f"{item.field} ("):
        return item.message if item.message.startswith(item.field) else f"{item.field}: {item.message}"
    return f"{item.field} ({json.dumps(item.value, ensure_ascii=False)}): {item.message}"


def short(value: Any) -> JsonValue:
    """The value as sent; a long or strange one as the start of its text."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        # JSON has no NaN; its name says as much.
        return value if value == value and abs(value) != float("inf") else str(value)
    return cut(value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False), _LONGEST_VALUE)


def cut(text: str, longest: int = _LONGEST_TEXT) -> str:
    """The start of a text: errors repeat what was sent, and that can be long."""
    return text if len(text) <= longest else text[: longest - 1] + "…"
