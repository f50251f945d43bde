"""Says in words which values a JSON schema allows."""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

Link = Callable[[str], str]
"""Markdown for the name of a schema, linked to its table where there is one."""

_FORMATS = {"date-time": "time", "date": "date", "path": "path", "password": "secret text", "uri": "URL"}
_KINDS = {"integer": "whole number", "number": "number", "boolean": "`true` or `false`", "null": "`null`"}
_LIMITS = {
    "minimum": "≥ {}",
    "exclusiveMinimum": "> {}",
    "maximum": "≤ {}",
    "exclusiveMaximum": "< {}",
    "maxLength": "up to {} characters",
    "maxItems": "up to {} entries",
}
_MOST_CHOICES = 24
"""Choices of an enumeration that a table cell lists."""


def value_type(schema: Mapping[str, Any], link: Link) -> str:
    """Words for the values that a schema allows, such as `whole number (≥ 1)`."""
    text = _without_limits(schema, link)
    limits = [words.format(_plain(schema[key])) for key, words in _LIMITS.items() if key in schema]
    return f"{text} ({', '.join(limits)})" if limits else text


def default_fact(schema: Mapping[str, Any], *, is_required: bool = False) -> str:
    """Describe the default, such as "default `20`"; an empty text where there is none, or where it is `null` or an object with defaults of its own."""
    if is_required:
        return "required"
    value = schema.get("default")
    if value is None or (isinstance(value, dict) and "$ref" in schema):
        return ""
    text = value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)
    return f"default `{text}`"


def _without_limits(schema: Mapping[str, Any], link: Link) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return link(name) if name else "JSON object"
    if "const" in schema:
        return _choice(schema["const"])
    if "enum" in schema:
        choices = [_choice(value) for value in schema["enum"]]
        return ", ".join(choices[:_MOST_CHOICES]) + (" …" if len(choices) > _MOST_CHOICES else "")
    for key in ("anyOf", "oneOf", "allOf"):
        if key in schema:
            # `null` last: whether a field may be left empty matters less than what it takes.
            options = sorted(schema[key], key=lambda option: option.get("type") == "null")
            return " or ".join(dict.fromkeys(value_type(option, link) for option in options))
    return _by_type(schema, link)


def _by_type(schema: Mapping[str, Any], link: Link) -> str:
    match schema.get("type"):
        case "string":
            return _FORMATS.get(schema.get("format", ""), "text")
        case "array" if "prefixItems" in schema:
            return "list of " + " and ".join(value_type(item, link) for item in schema["prefixItems"])
        case "array":
            item = value_type(schema.get("items", {}), link)
            return "list of " + re.sub(r"^(whole number|number|text|path)\b", r"\1s", item)
        case "object" if isinstance(schema.get("additionalProperties"), Mapping):
            return "map to " + value_type(schema["additionalProperties"], link)
        case "object":
            return "JSON object"
        case str(kind):
            return _KINDS[kind]
        case _:
            return "any JSON value"


def _choice(value: Any) -> str:
    return f"`{json.dumps(value)}`" if isinstance(value, str) else f"`{value}`"


def _plain(value: Any) -> str:
    return f"{value:,.10g}" if isinstance(value, int | float) else str(value)
