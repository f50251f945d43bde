"""Every route of the application with what it does, so that a test of all of them takes in new ones by itself."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI
from fastapi.routing import iter_route_contexts

from shardtune.service.access.actions import Action

UNSAFE = {"POST", "PUT", "PATCH", "DELETE"}


@dataclass(frozen=True)
class Address:
    """One method of one path."""

    method: str
    path: str
    """Path with names in braces, such as `/v1/studies/{study_id}`."""
    actions: tuple[Action, ...]
    query: tuple[str, ...]
    """Names of what may follow the question mark."""
    is_page: bool

    @property
    def is_unsafe(self) -> bool:
        return self.method in UNSAFE


def addresses(app: FastAPI) -> list[Address]:
    """All but static files and the documents of the API."""
    actual = []
    for route in iter_route_contexts(app.routes):
        dependant = getattr(route, "dependant", None)
        if dependant is None:
            continue
        path = str(route.path_format)
        is_page = not path.startswith(("/v1/", "/healthz", "/readyz", "/metrics"))
        actions = tuple(Action(name) for name in dict.fromkeys(_named(dependant)))
        query = tuple(dict.fromkeys(_query_names(dependant)))
        actual += [Address(method, path, actions, query, is_page) for method in sorted(route.methods or ())]
    return actual


def _query_names(dependant: Any) -> Iterator[str]:
    yield from (parameter.alias for parameter in dependant.query_params)
    for inner in dependant.dependencies:
        yield from _query_names(inner)


def _named(dependant: Any) -> Iterator[str]:
    """Actions that a route's dependencies ask for."""
    yield from dependant.own_oauth_scopes or ()
    for inner in dependant.dependencies:
        yield from _named(inner)
