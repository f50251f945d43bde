"""Values of the API page: every route of `/openapi.json` with its scope, parameters, body and answers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_METHODS = ("get", "post", "put", "delete")


@dataclass(frozen=True)
class Parameter:
    """One parameter of a REST operation, in the request's path, query or headers."""

    name: str
    place: str
    is_required: bool
    text: str


@dataclass(frozen=True)
class Operation:
    """One method of one path."""

    method: str
    path: str
    text: str
    scopes: str
    parameters: tuple[Parameter, ...]
    body: str
    """Name of the schema of the request's body; empty if the request has no body."""
    answers: tuple[tuple[str, str], ...]
    """Possible responses, as pairs of a status code and its meaning."""


def sections(document: Mapping[str, Any]) -> dict[str, list[Operation]]:
    """Group the operations by tag, in the order in which the OpenAPI document lists them."""
    by_tag: dict[str, list[Operation]] = {}
    for path, methods in document["paths"].items():
        for method in _METHODS:
            if method in methods:
                entry = methods[method]
                by_tag.setdefault(entry.get("tags", ["other"])[0], []).append(_operation(method, path, entry))
    return by_tag


def _operation(method: str, path: str, entry: Mapping[str, Any]) -> Operation:
    scopes = [scope for rule in entry.get("security", ()) for names in rule.values() for scope in names]
    body = entry.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    return Operation(
        method=method.upper(),
        path=path,
        text=entry.get("description") or entry.get("summary", ""),
        scopes=", ".join(scopes),
        parameters=tuple(_parameter(item) for item in entry.get("parameters", ())),
        body=_schema_name(body),
        answers=tuple((status, _answer(item)) for status, item in sorted(entry["responses"].items())),
    )


def _parameter(entry: Mapping[str, Any]) -> Parameter:
    text = entry.get("description") or entry.get("schema", {}).get("description", "")
    return Parameter(entry["name"], entry["in"], entry.get("required", False), text)


def _answer(entry: Mapping[str, Any]) -> str:
    schema = entry.get("content", {}).get("application/json", {}).get("schema", {})
    words = (_schema_name(schema), entry.get("description", "").replace("`", ""))
    return ": ".join(word for word in words if word)


def _schema_name(schema: Mapping[str, Any]) -> str:
    """Return the name of a schema, under which `components` of the OpenAPI document lists it."""
    return str(schema.get("$ref", "")).rpartition("/")[2] or str(schema.get("title", ""))
