"""Add a description and an example to every field of the OpenAPI document.

Descriptions come from the docstrings under the fields in api_schemas. fields.json describes names with the same meaning
everywhere (`study_id`, `created_at`) once, and contains the examples that neither a default nor an enumeration gives.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

_MOMENT = "2026-01-31T12:00:00Z"
_MAX_DEPTH = 6
"""Maximum depth of nested models in a generated example, such as a strategy within a trial within a study."""


class FieldTexts:
    """Adds descriptions and examples to the fields of one OpenAPI document."""

    def __init__(self, document: dict[str, Any]) -> None:
        self._document = document
        self._schemas: dict[str, dict[str, Any]] = document["components"]["schemas"]
        self._texts_by_name: Mapping[str, dict[str, Any]] = json.loads(
            Path(__file__).with_name("fields.json").read_text()
        )

    def describe_all(self) -> None:
        """Add a description to the fields of every schema and to the parameters of every route, unless they have one
        already.
        """
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
        description = self._texts_by_name.get(name, {}).get("description")
        if "description" not in field and description is not None:
            field["description"] = description

    def _example(self, name: str, field: Mapping[str, Any], depth: int) -> Any:
        """Example value of an OpenAPI field: the one in the document if it has one, else a value that suits the
        field's name, else a value of its type.
        """
        if field.get("$ref", "").endswith("/JsonValue"):
            return self._texts_by_name.get(name, {}).get("example")
        if "$ref" in field:
            return self._schema_example(field["$ref"].rpartition("/")[2], depth)
        if field.get("examples"):
            return field["examples"][0]
        for keyword in ("const", "default"):
            if field.get(keyword) is not None:
                return field[keyword]
        for keyword in ("anyOf", "oneOf"):
            # The first member that is no null: an example of an optional field shows a value.
            if keyword in field:
                return self._example(
                    name, next(choice for choice in field[keyword] if choice.get("type") != "null"), depth
                )
        return self._type_example(name, field, depth)

    def _schema_example(self, name: str, depth: int) -> Any:
        # Only required fields, so that an example of a large schema stays readable.
        schema = self._schemas[name]
        if "properties" not in schema or schema.get("examples"):
            return self._example(name, schema, depth)
        if depth >= _MAX_DEPTH:
            return {}
        required = schema.get("required", ())
        return {key: self._example(key, schema["properties"][key], depth + 1) for key in required}

    def _type_example(self, name: str, field: Mapping[str, Any], depth: int) -> Any:
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
                return self._texts_by_name.get(name, {}).get("example", _example_number(field))
            case _:
                return self._texts_by_name.get(name, {}).get("example")


def _example_number(field: Mapping[str, Any]) -> float:
    """Smallest whole number that an OpenAPI field allows; 1 if it has no lower limit."""
    low = field.get("minimum", field.get("exclusiveMinimum", 0.0))
    high = field.get("maximum", field.get("exclusiveMaximum", low + 2))
    number = max(low, 1.0) if low + 1 < high else (low + high) / 2
    return int(number) if field.get("type") == "integer" else float(number)
