"""Routes of the REST API, from the OpenAPI document: scope, parameters, bodies and errors of each."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from docs.generate import schema_tables
from docs.generate.code_tables import error_anchor
from docs.generate.context import PageContext
from docs.generate.markdown import cell, described, heading, paragraphs, sentence, slug, table
from docs.generate.sources import openapi
from docs.generate.value_types import default_fact, value_type

_METHODS = ("get", "post", "put", "patch", "delete")


class Route(NamedTuple):
    """One method of one address."""

    method: str
    path: str
    operation: Mapping[str, Any]

    @property
    def anchor(self) -> str:
        """Anchor of the route's section."""
        return slug(f"{self.method} {self.path}")

    @property
    def tag(self) -> str:
        """Noun that the route is listed under."""
        return str(self.operation.get("tags", ["other"])[0])

    @property
    def codes(self) -> tuple[str, ...]:
        """Error codes that the route may answer with."""
        texts = [answer.get("description", "") for answer in self.operation["responses"].values()]
        return tuple(dict.fromkeys(name for text in texts for name in re.findall(r"^`(\w+)`:", text, re.MULTILINE)))


def routes() -> list[Route]:
    """All routes, in the order of the document."""
    return [
        Route(method.upper(), path, methods[method])
        for path, methods in openapi()["paths"].items()
        for method in _METHODS
        if method in methods
    ]


def rest(context: PageContext, *tags: str) -> str:
    """Sections for all routes, by tag; with `tags` for theirs only.

    Raises:
        ValueError: names a tag that no route has.
    """
    by_tag: dict[str, list[Route]] = {}
    for route in routes():
        by_tag.setdefault(route.tag, []).append(route)
    unknown = [tag for tag in tags if tag not in by_tag]
    if unknown:
        raise ValueError(f"tag ({', '.join(unknown)}) must be one of {', '.join(by_tag)}")
    shared = _codes_of_all(routes())
    parts = [] if tags else [_overview(by_tag), _shared_errors(context, shared)]
    for tag in tags or by_tag:
        parts.append(heading(2, sentence(tag).rstrip("."), f"routes-{slug(tag)}"))
        parts += [_section(context, route, shared) for route in by_tag[tag]]
    return paragraphs(*parts)


def _codes_of_all(all_routes: list[Route]) -> set[str]:
    """Error codes that every route with a key may answer with; said once."""
    return set.intersection(*(set(route.codes) for route in all_routes if route.operation.get("security")))


def _overview(by_tag: Mapping[str, list[Route]]) -> str:
    rows = [
        (
            f"[`{route.method} {route.path}`](#{route.anchor})",
            ", ".join(_scopes(route)) or "no key",
            _first_sentence(route),
        )
        for group in by_tag.values()
        for route in group
    ]
    return table(("route", "scope", "purpose"), rows)


def _shared_errors(context: PageContext, codes: Iterable[str]) -> str:
    listed = ", ".join(_error(context, code) for code in sorted(codes))
    return f"Every route that needs a key may also answer with {listed}." if listed else ""


def _section(context: PageContext, route: Route, shared: set[str]) -> str:
    operation = route.operation
    scopes = _scopes(route)
    lines = [f"- Scope: {' or '.join(scopes)}" if scopes else "- Needs no key"]
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
    if body is not None:
        lines.append(f"- Body: {value_type(body, lambda name: schema_tables.link(context, name))}")
    lines += [f"- Answer: {text}" for text in _answers(context, route)]
    errors = [code for code in route.codes if code not in shared]
    if errors:
        lines.append(f"- Errors: {', '.join(_error(context, code) for code in errors)}")
    return paragraphs(
        heading(3, f"`{route.method} {route.path}`", route.anchor),
        operation.get("description") or sentence(operation.get("summary", "")),
        "\n".join(lines),
        _parameters(context, operation),
    )


def _parameters(context: PageContext, operation: Mapping[str, Any]) -> str:
    rows = [
        (
            f"`{entry['name']}`",
            entry["in"],
            described(
                entry.get("description") or entry["schema"].get("description", ""),
                value_type(entry["schema"], lambda name: schema_tables.link(context, name)),
                default_fact(entry["schema"], is_required=entry.get("required", False)),
            ),
        )
        for entry in operation.get("parameters", ())
    ]
    return table(("parameter", "in", "meaning"), rows)


def _answers(context: PageContext, route: Route) -> list[str]:
    answers = []
    for status, answer in sorted(route.operation["responses"].items()):
        if int(status) >= 400:
            continue
        texts = [
            value_type(content["schema"], lambda name: schema_tables.link(context, name))
            if content.get("schema")
            else f"`{media}`"
            for media, content in answer.get("content", {}).items()
        ]
        description = answer.get("description", "")
        words = [text for text in (*texts, description) if text and text != "Successful Response"]
        answers.append(f"{status}{': ' if words else ''}{cell('; '.join(dict.fromkeys(words)))}")
    return answers


def _error(context: PageContext, code: str) -> str:
    address = context.link_to("error-codes", error_anchor(code))
    return f"[`{code}`]({address})" if address else f"`{code}`"


def _scopes(route: Route) -> list[str]:
    scopes = [
        scope for entry in route.operation.get("security", ()) for names in entry.values() for scope in names
    ]  # fmt: skip
    return [f"`{scope}`" for scope in dict.fromkeys(scopes)]


def _first_sentence(route: Route) -> str:
    text = cell(route.operation.get("description") or route.operation.get("summary", ""))
    return re.split(r"(?<=[.;:]) ", text, maxsplit=1)[0].rstrip(";:")
