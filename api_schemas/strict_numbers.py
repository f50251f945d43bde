"""Strict number and boolean types for JSON input. Pydantic alone would convert the text "8" to 8 and 1 to true, which
the published schema does not allow and which hides mistakes."""

from typing import Any

from pydantic_core import CoreSchema, PydanticCustomError, core_schema

_NO_SCHEMAS = ("metadata", "serialization", "config", "expected", "default")


def exact(cls: type, node: Any) -> Any:
    """Change the core schema of a pydantic class so that the number types of its own fields are strict. Nested schema
    classes have already done the same for theirs. Unions are not changed, because pydantic already prefers the member
    of the exact type."""
    if isinstance(node, list | tuple):
        return type(node)(exact(cls, item) for item in node)
    if not isinstance(node, dict):
        return node
    kind = node.get("type")
    if kind == "union" or (kind == "model" and node["cls"] is not cls):
        return node
    if kind in ("bool", "float"):
        return {**node, "strict": True}
    if kind == "int":
        return _exact_integers(core_schema.int_schema(**{key: value for key, value in node.items() if key != "type"}))
    return {name: value if name in _NO_SCHEMAS else exact(cls, value) for name, value in node.items()}


def _exact_integers(schema: CoreSchema) -> CoreSchema:
    """Return an integer schema that accepts floats without a fraction, but neither text nor booleans. Pydantic's strict
    integers would reject 5e8, which is an integer in JSON."""
    return core_schema.no_info_before_validator_function(_no_text_or_truth, schema)


def _no_text_or_truth(value: Any) -> Any:
    if isinstance(value, str | bytes | bool):
        raise PydanticCustomError("int_type", "Input should be a valid integer")
    return value
