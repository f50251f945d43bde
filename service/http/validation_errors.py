"""Convert pydantic's validation errors into the service's own messages: the field, the value sent, and the remedy."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import JsonValue

from shardtune.api_schemas.known_fields import model_named, rephrase_error, suggest_field
from shardtune.service.http.error_codes import FieldError

FIELD_FIRST = re.compile(r"^(?P<field>[a-z][a-z0-9_.]*) \((?P<value>[^)]*)\)")
"""Pattern that matches the error messages of the service's own rules: they begin with a field's name and its value in
parentheses.
"""
NAMED_FIRST = re.compile(r"^(?P<field>[a-z][a-z0-9_.]*) is (?:no key|(?P<missing>missing))\b")
"""Pattern that matches error messages about a field's name that is wrong or missing; such messages repeat no value."""
_PATTERN_TEXT = "constrained-str"
"""Name that pydantic inserts into the path of an error about a text field that has to match a regular expression."""
_SCALARS = ("bool", "int", "float", "str")
"""Names that pydantic inserts into the path of an error about a field of several types, for the plain types (such as
int or str) among them.
"""
_EXPECTED_KINDS = {
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
"""Kind of value that was expected, in words, for each type of pydantic error."""
NO_OBJECT = ("model_type", "model_attributes_type", "dict_type")
"""Types of pydantic errors for a value that is not an object."""
_MAX_VALUE = 200
_MAX_TEXT = 2000


def field_error(item: Mapping[str, Any], known_fields: Sequence[str] = ()) -> FieldError:
    """Convert one pydantic error into the API's field error. `known_fields` are the field names that the object
    accepts; the error suggests those that are similar to a wrong name.
    """
    path = error_path(item)
    path_in_body = path[1:] if path and path[0] in ("body", "query", "path") else path
    field = ".".join(str(part) for part in path_in_body) or str(path[0] if path else "body")
    error_type, message = str(item["type"]), rephrase_error(str(item["msg"]))
    value = item.get("input")
    if error_type == "missing":
        message, value = "is required; add it", None
    elif error_type == "extra_forbidden":
        message = f"is not a field here; {suggest_field(str(item['loc'][-1]), known_fields)}"
    elif error_type == "json_invalid":
        reason = item.get("ctx", {}).get("error", "syntax error")
        field, message, value = "body", f"is not JSON ({reason}); send a JSON object", None
    elif field == "body" and isinstance(value, bytes | str):
        message, value = "was not read as JSON; send it with the header Content-Type: application/json", None
    elif error_type in NO_OBJECT:
        message = f"must be an object{_with_fields(item)}; send one"
    elif error_type not in ("value_error", "assertion_error"):
        message = f"{message}; correct it"
    else:
        field, value = _named_field(field, value, message)
    return FieldError(field=field, value=shown_value(value), message=message)


def _with_fields(item: Mapping[str, Any]) -> str:
    """Text that names the required fields of an object. The object's class is the one that a pydantic error names."""
    model = model_named(str(item.get("ctx", {}).get("class_name")))
    needed = [] if model is None else [name for name, field in model.model_fields.items() if field.is_required()]
    return f" with {' and '.join(needed)}" if needed else ""


def _named_field(field: str, value: Any, message: str) -> tuple[str, Any]:
    """Field and value that the error message names, if the error comes from a rule that checks a whole object; else
    those of the error itself.
    """
    named = FIELD_FIRST.match(message)
    within, _, name = field.rpartition(".")
    if named is None or named["field"] == name:
        return field, value
    # A rule of one field may name a part of it, such as the rule of `prices` that names `prices.h100`.
    path = within if named["field"].startswith(f"{name}.") else field
    return f"{path}.{named['field']}".removeprefix("body.").removeprefix("."), named["value"].strip("'")


def drop_union_noise(items: Sequence[Any]) -> list[Any]:
    """Remove errors that the client would not understand: those about the types of a field with several types that
    the client evidently did not mean to use.
    """
    # Where a field takes a word or an object and got an object, the errors about the word are noise.
    relevant = [item for item in items if not (_is_about_a_word(item) and isinstance(item.get("input"), dict))]
    relevant = [item for item in relevant if not (is_short_by_rejections(item, items) or _is_wrong_inside(item, items))]
    return _merge_kind_errors(relevant or list(items))


def _merge_kind_errors(items: Sequence[Any]) -> list[Any]:
    """Merge errors about a field with several types into one error, if each type rejects the value because it is of
    another kind, such as a text in place of a number.
    """
    kinds: dict[tuple[object, ...], list[str]] = {}
    for item in items:
        if item["type"] in _EXPECTED_KINDS:
            kinds.setdefault(tuple(error_path(item)), []).append(_EXPECTED_KINDS[item["type"]])
    merged = []
    for item in items:
        expected = list(dict.fromkeys(kinds.get(tuple(error_path(item)), ())))
        if "a number" in expected and "a whole number" in expected:
            expected.remove("a whole number")
        if item["type"] not in _EXPECTED_KINDS:
            merged.append(item)
            continue
        if len(expected) == 1:
            merged.append(item)
        elif expected:
            expected_list = f"{', '.join(expected[:-1])} or {expected[-1]}"
            merged.append({**item, "type": "kind_of_value", "msg": f"must be {expected_list}"})
        kinds[tuple(error_path(item))] = []
    return merged


def _is_about_a_word(item: Any) -> bool:
    return bool(item["type"] == "literal_error" or item["loc"][-1:] == (_PATTERN_TEXT,))


def _is_wrong_inside(item: Any, items: Sequence[Any]) -> bool:
    """Whether another type of a field with several types accepted the value's kind and found a mistake inside the
    value.
    """
    if item["type"] not in _EXPECTED_KINDS:
        return False
    item_path = error_path(item)
    return any(
        (isinstance(item["input"], dict | list) and len(path) > len(item_path) and path[: len(item_path)] == item_path)
        or (path == item_path and other["type"] not in _EXPECTED_KINDS)
        for other, path in ((other, error_path(other)) for other in items)
    )


def error_path(item: Any) -> list[object]:
    """Path of a validation error in the request: names of fields and indices of entries. Names that pydantic inserts
    for the types of a field with several types are left out.
    """
    return [part for part in item["loc"] if not _is_branch(part)]


def is_short_by_rejections(item: Any, items: Sequence[Any]) -> bool:
    """Whether a list counts as too short only because some of its entries were rejected; each of them has an error of
    its own.
    """
    item_path = tuple(item["loc"])
    return item["type"] == "too_short" and any(
        len(other["loc"]) > len(item_path) and tuple(other["loc"][: len(item_path)]) == item_path for other in items
    )


def _is_branch(part: object) -> bool:
    """Whether a part of a validation error's path is a name that pydantic inserted for one of a field's types, and
    not the name of a field.
    """
    # Pydantic puts the tried member into the path: a class name, `literal[…]`, `dict[…]`, or a plain type.
    return isinstance(part, str) and (part[:1].isupper() or "[" in part or part in (_PATTERN_TEXT, *_SCALARS))


def describe_mistake(item: FieldError) -> str:
    """Describe the mistake in a field on one line: field, value and remedy."""
    if item.value is None or item.message.startswith(f"{item.field} ("):
        return item.message if item.message.startswith(item.field) else f"{item.field}: {item.message}"
    return f"{item.field} ({json.dumps(item.value, ensure_ascii=False)}): {item.message}"


def shown_value(value: Any) -> JsonValue:
    """Text of the value that the client sent; a long or unusual value is shortened to its beginning."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        # JSON has no NaN or infinity, so their names are sent as text.
        return value if value == value and abs(value) != float("inf") else str(value)
    return truncate(value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False), _MAX_VALUE)


def truncate(text: str, longest: int = _MAX_TEXT) -> str:
    """Shorten a text from a request to its beginning, since error messages repeat it."""
    return text if len(text) <= longest else text[: longest - 1] + "…"
