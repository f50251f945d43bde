"""A description and an example for every field of the OpenAPI document.

Descriptions stand under the fields in api_schemas; what a field's name says everywhere (`study_id`, `created_at`) is told
once, in fields.json, which also has the examples that neither a default nor an enumeration gives.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

_MOMENT = "2026-01-31T12:00:00Z"
_DEEPEST = 6
"""References that an example follows: a strategy within a trial within a study."""


class FieldTexts:
    """What is added to one document."""

    def __init__(self, document: dict[str, Any]) -> None:
        self._document = document
        self._schemas: dict[str, dict[str, Any]] = document["components"]["schemas"]
        self._known: Mapping[str, dict[str, Any]] = json.loads(Path(__file__).with_name("fields.json").read_text())

    def add(self) -> None:
        """To the fields of every schema and the parameters of every route; what stands there already stays."""
        for schema in self._schemas.values():
            for name, field in schema.get("properties", {}).items():
                self._describe(name, field)
                if "examples" not in field:
                    field["examples"] = [self._example(name, field, 0)]
        for parameter in self._parameters():
            self._describe(parameter["name"], parameter)
            if "example" not in parameter:
                parameter["example"] = self._example(parameter["name"], parameter["schema"], 0)

    def _parameters(self) -> Iterator[dict[str, Any]]:
        for path in self._document["paths"].values():
            for operation in path.values():
                yield from operation.get("parameters", ())

    def _describe(self, name: str, field: dict[str, Any]) -> None:
        told = self._known.get(name, {}).get("description")
        if "description" not in field and told is not None:
            field["description"] = told

    def _example(self, name: str, field: Mapping[str, Any], depth: int) -> Any:
        """Of a field: what the document says of it, else what is known of its name, else what its type allows."""
        if field.get("$ref", "").endswith("/JsonValue"):
            return self._known.get(name, {}).get("example")
        if "$ref" in field:
            return self._of_schema(field["$ref"].rpartition("/")[2], depth)
        if field.get("examples"):
            return field["examples"][0]
        for one in ("const", "default"):
            if field.get(one) is not None:
                return field[one]
        for one in ("anyOf", "oneOf"):
            if one in field:
                return self._example(name, next(choice for choice in field[one] if choice.get("type") != "null"), depth)
        return self._by_type(name, field, depth)

    def _of_schema(self, name: str, depth: int) -> Any:
        schema = self._schemas[name]
        if "properties" not in schema or schema.get("examples"):
            return self._example(name, schema, depth)
        if depth >= _DEEPEST:
            return {}
        required = schema.get("required", ())
        return {key: self._example(key, schema["properties"][key], depth + 1) for key in required}

    def _by_type(self, name: str, field: Mapping[str, Any], depth: int) -> Any:
        if "enum" in field:
            return field["enum"][0]
        match field.get("type"):
            case "array":
                parts = field.get("prefixItems") or [field.get("items", {})] * max(1, field.get("minItems", 1))
                return [self._example(name, part, depth) for part in parts]
            case "object":
                return {}
            case "string" if field.get("format") == "date-time":
                return _MOMENT
            case "boolean":
                return True
            case "integer" | "number":
                return self._known.get(name, {}).get("example", _number(field))
            case _:
                return self._known.get(name, {}).get("example")


def _number(field: Mapping[str, Any]) -> float:
    """The smallest whole number that is allowed, 1 where there is no limit."""
    low = field.get("minimum", field.get("exclusiveMinimum", 0.0))
    high = field.get("maximum", field.get("exclusiveMaximum", low + 2))
    found = max(low, 1.0) if low + 1 < high else (low + high) / 2
    return int(found) if field.get("type") == "integer" else float(found)
