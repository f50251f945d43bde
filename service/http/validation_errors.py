"""Pydantic's mistakes in our words: which field, what was sent, what to do."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import JsonValue

from shardtune.api_schemas.known_fields import meant, model_named, plain
from shardtune.service.http.error_codes import FieldError

FIELD_FIRST = re.compile(r"^(?P<field>[a-z][a-z0-9_.]*) \((?P<value>[^)]*)\)")
"""How messages of our own rules begin."""
NAMED_FIRST = re.compile(r"^(?P<field>[a-z][a-z0-9_.]*) is (?:no key|(?P<missing>missing))\b")
"""Likewise, of a name that is wrong or absent, which has no value to repeat."""
_WORD = "constrained-str"
"""Pydantic's name in a path for text with a pattern."""
_SCALARS = ("bool", "int", "float", "str")
"""Likewise, of the members of a union of plain values."""
_KINDS = {
    "bool_type": "true or false",
    "int_type": "a whole number",
    "float_type": "a number",
    "string_type": "text",
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
}
"""What a value must be, by the error that says it is not."""
NO_OBJECT = ("model_type", "model_attributes_type", "dict_type")
"""What pydantic says of a value that is no object."""
_LONGEST_VALUE = 200
_LONGEST_TEXT = 2000


def field_error(item: Mapping[str, Any], known: Sequence[str] = ()) -> FieldError:
    """One of pydantic's errors in our words; `known` are the fields that may stand there."""
    path = place(item)
    where = path[1:] if path and path[0] in ("body", "query", "path") else path
    field = ".".join(str(part) for part in where) or str(path[0] if path else "body")
    kind, message = str(item["type"]), plain(str(item["msg"]))
    value = item.get("input")
    if kind == "missing":
        message, value = "is required; add it", None
    elif kind == "extra_forbidden":
        message = f"is not a field here; {meant(str(item['loc'][-1]), known)}"
    elif kind == "json_invalid":
        reason = item.get("ctx", {}).get("error", "syntax error")
        field, message, value = "body", f"is not JSON ({reason}); send a JSON object", None
    elif field == "body" and isinstance(value, bytes | str):
        message, value = "was not read as JSON; send it with the header Content-Type: application/json", None
    elif kind in NO_OBJECT:
        message = f"must be an object{_with_fields(item)}; send one"
    elif kind not in ("value_error", "assertion_error"):
        message = f"{message}; correct it"
    else:
        field, value = _inside(field, value, message)
    return FieldError(field=field, value=short(value), message=message)


def _with_fields(item: Mapping[str, Any]) -> str:
    """The fields that an object must have, by the name of its class, which pydantic tells."""
    kind = model_named(str(item.get("ctx", {}).get("class_name")))
    needed = [] if kind is None else [name for name, field in kind.model_fields.items() if field.is_required()]
    return f" with {' and '.join(needed)}" if needed else ""


def _inside(field: str, value: Any, message: str) -> tuple[str, Any]:
    """A rule over a whole object names the field inside that breaks it."""
    found = FIELD_FIRST.match(message)
    if found is None or found["field"] == field.rpartition(".")[2]:
        return field, value
    return f"{field}.{found['field']}".removeprefix("body."), found["value"].strip("'")


def of_the_likeliest_branch(items: Sequence[Any]) -> list[Any]:
    """Where a field takes a word or an object and got an object, the errors about the word are noise."""
    kept = [item for item in items if not (_is_about_a_word(item) and isinstance(item.get("input"), dict))]
    kept = [item for item in kept if not (counts_what_was_wrong(item, items) or _is_wrong_inside(item, items))]
    return _said_once(kept or list(items))


def _said_once(items: Sequence[Any]) -> list[Any]:
    """Where each member of a union rejects the kind of a value, what the value may be is one error."""
    kinds: dict[tuple[object, ...], list[str]] = {}
    for item in items:
        if item["type"] in _KINDS:
            kinds.setdefault(tuple(place(item)), []).append(_KINDS[item["type"]])
    said = []
    for item in items:
        words = list(dict.fromkeys(kinds.get(tuple(place(item)), ())))
        if "a number" in words and "a whole number" in words:
            words.remove("a whole number")
        if item["type"] not in _KINDS:
            said.append(item)
            continue
        if len(words) == 1:
            said.append(item)
        elif words:
            listed = f"{', '.join(words[:-1])} or {words[-1]}"
            said.append({**item, "type": "kind_of_value", "msg": f"must be {listed}"})
        kinds[tuple(place(item))] = []
    return said


def _is_about_a_word(item: Any) -> bool:
    return bool(item["type"] == "literal_error" or item["loc"][-1:] == (_WORD,))


def _is_wrong_inside(item: Any, items: Sequence[Any]) -> bool:
    """One member of a union took the value and found a mistake in it; others reject its kind."""
    if item["type"] not in _KINDS:
        return False
    start = place(item)
    return any(
        (isinstance(item["input"], dict | list) and len(path) > len(start) and path[: len(start)] == start)
        or (path == start and other["type"] not in _KINDS)
        for other, path in ((other, place(other)) for other in items)
    )


def place(item: Any) -> list[object]:
    """Where an error is: names of fields and numbers of entries, without the members of unions that were tried."""
    return [part for part in item["loc"] if not _is_branch(part)]


def counts_what_was_wrong(item: Any, items: Sequence[Any]) -> bool:
    """A list is too short since its entries were rejected, each with an error of its own."""
    start = tuple(item["loc"])
    return item["type"] == "too_short" and any(
        len(other["loc"]) > len(start) and tuple(other["loc"][: len(start)]) == start for other in items
    )


def _is_branch(part: object) -> bool:
    """Pydantic puts the tried member of a union into the path: a class name, `literal[…]`, `dict[…]`, or that of a word."""
    return isinstance(part, str) and (part[:1].isupper() or "[" in part or part in (_WORD, *_SCALARS))


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
