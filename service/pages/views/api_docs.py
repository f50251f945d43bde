"""The API's own document (`/openapi.json`) as one page: every route with its scope, what goes in and what comes out."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_METHODS = ("get", "post", "put", "delete")


@dataclass(frozen=True)
class Parameter:
    """One thing a request may say beside its body."""

    name: str
    place: str
    is_required: bool
    text: str


@dataclass(frozen=True)
class Operation:
    """One method of one address."""

    method: str
    path: str
    text: str
    scopes: str
    parameters: tuple[Parameter, ...]
    body: str
    """Name of its schema; empty where none is read."""
    answers: tuple[tuple[str, str], ...]
    """Status, and what it means."""


def sections(document: Mapping[str, Any]) -> dict[str, list[Operation]]:
    """The operations by tag, in the order of the document."""
    found: dict[str, list[Operation]] = {}
    for path, methods in document["paths"].items():
        for method in _METHODS:
            if method in methods:
                entry = methods[method]
                found.setdefault(entry.get("tags", ["other"])[0], []).append(_operation(method, path, entry))
    return found


def _operation(method: str, path: str, entry: Mapping[str, Any]) -> Operation:
    scopes = [scope for one in entry.get("security", ()) for named in one.values() for scope in named]
    body = entry.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    return Operation(
        method=method.upper(),
        path=path,
        text=entry.get("description") or entry.get("summary", ""),
        scopes=", ".join(scopes),
        parameters=tuple(_parameter(one) for one in entry.get("parameters", ())),
        body=_name(body),
        answers=tuple((status, _answer(one)) for status, one in sorted(entry["responses"].items())),
    )


def _parameter(entry: Mapping[str, Any]) -> Parameter:
    text = entry.get("description") or entry.get("schema", {}).get("description", "")
    return Parameter(entry["name"], entry["in"], entry.get("required", False), text)


def _answer(entry: Mapping[str, Any]) -> str:
    schema = entry.get("content", {}).get("application/json", {}).get("schema", {})
    words = (_name(schema), entry.get("description", "").replace("`", ""))
    return ": ".join(word for word in words if word)


def _name(schema: Mapping[str, Any]) -> str:
    """Of a schema, as `components` has it."""
    return str(schema.get("$ref", "")).rpartition("/")[2] or str(schema.get("title", ""))
