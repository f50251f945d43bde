"""Check the scopes of a request's route before its body is read.

FastAPI checks a route's dependencies in the order of their declaration, and some of them read the body. A key without
the scope must not have the service read and parse anything.
"""

from collections.abc import Iterator, Sequence

from fastapi import FastAPI, Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import RouteContext, iter_route_contexts
from starlette.routing import Match

from shardtune.service.access import actions
from shardtune.service.access.actions import Action
from shardtune.service.process.principal import Principal


def check_route_scopes(request: Request, principal: Principal) -> None:
    """Check that the sender may perform every action of the route that the request goes to.

    Raises:
        Forbidden: names the missing scope.
    """
    for route in _routes(request.app):
        if route.matches(request.scope)[0] is Match.FULL:
            dependant = getattr(route, "dependant", None)
            for action in _actions(dependant) if isinstance(dependant, Dependant) else ():
                actions.check_scope(principal, action)
            return


def _routes(app: FastAPI) -> Sequence[RouteContext]:
    # Listed once: the routes are complete before the first request, and each request needs the list.
    if not hasattr(app.state, "route_contexts"):
        app.state.route_contexts = tuple(iter_route_contexts(app.routes))
    routes: Sequence[RouteContext] = app.state.route_contexts
    return routes


def _actions(dependant: Dependant) -> Iterator[Action]:
    """Yield the actions that a route permits only with a scope, as its dependencies state them."""
    yield from map(Action, dependant.own_oauth_scopes or ())
    for inner in dependant.dependencies:
        yield from _actions(inner)
