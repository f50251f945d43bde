"""Description of the pages' forms and addresses as an OpenAPI document, which the service itself gives for the API only."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute, RouteContext, iter_route_contexts

_NO_PAGES = ("/v1/", "/healthz", "/readyz", "/metrics", "/openapi.json", "/static", "/docs", "/mcp")
_ENDLESS = "/live"
"""End of the addresses of streams: an answer does not end as long as its study goes on."""


class _Described(RouteContext):
    """Route that is in the document, which pages leave out of the service's own."""

    include_in_schema = True


def page_document(app: FastAPI, csrf: str, values: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """Document of all pages, where forms carry the token `csrf`, and a parameter has one of its `values`.

    A name of `values` is that of a parameter, or its path's last word before it: `delete` and `forget` end something, and
    take something that no other address needs.
    """
    routes = []
    for route in iter_route_contexts(app.routes):
        path = str(route.path_format)
        if (
            isinstance(route.original_route, APIRoute)
            and not path.startswith(_NO_PAGES)
            and not path.endswith(_ENDLESS)
        ):
            routes.append(_Described(**{part.name: getattr(route, part.name) for part in dataclasses.fields(route)}))
    document = get_openapi(title="Pages", version="1", routes=routes)
    for path, methods in document["paths"].items():
        for operation in methods.values():
            operation["responses"] = {"default": {"description": "A page or a file."}}
            for parameter in operation.get("parameters", []):
                known = values.get(f"{parameter['name']} {path.rpartition('/')[2]}", values.get(parameter["name"]))
                if known:
                    parameter["schema"] = {"enum": [*known]}
    for schema in document["components"]["schemas"].values():
        if "csrf" in schema.get("properties", {}):
            schema["properties"]["csrf"] = {"enum": [csrf]}
            schema["required"] = sorted({*schema.get("required", []), "csrf"})
    return document
