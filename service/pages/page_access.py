"""Who reads the pages: the holder of a key who has logged in, or anybody on this machine while there are no keys."""

import secrets
from datetime import timedelta
from typing import Annotated, Any

from fastapi import Depends, Request

from shardtune.api_schemas.keys import Scope
from shardtune.db.queries import keys, page_sessions
from shardtune.service.access import auth
from shardtune.service.http.errors import Forbidden, Unauthorized
from shardtune.service.process.context import Context, context_of
from shardtune.service.process.principal import LOCAL, Principal

COOKIE = "shardtune_session"
LIFETIME = timedelta(hours=12)


class LoginNeeded(Exception):
    """There are keys, and this browser has not logged in with one."""


def log_in(context: Context, secret: str) -> str:
    """A session's token for a key that may read studies.

    Raises:
        Unauthorized: no such key.
        Forbidden: a key for something else, such as a worker's.
    """
    principal = auth.authenticate(context, secret.strip())
    if principal is None or principal.key_id is None:
        raise Unauthorized("key_invalid", "this service has no keys, and needs no login from its own machine")
    _check(principal, Scope.STUDIES_READ)
    token = secrets.token_urlsafe(32)
    with context.db.write() as session:
        now = context.now()
        page_sessions.add(session, auth.hash_of(token), principal.key_id, now, now + LIFETIME)
    return token


def log_out(context: Context, token: str) -> None:
    """End a session; unknown ones are none."""
    with context.db.write() as session:
        page_sessions.end(session, auth.hash_of(token))


def _enter(request: Request, context: Annotated[Context, Depends(context_of)]) -> None:
    request.state.principal = _principal(request, context)
    _check(request.state.principal, Scope.STUDIES_READ)


def _principal(request: Request, context: Context) -> Principal:
    token = request.cookies.get(COOKIE)
    with context.db.read() as session:
        found = page_sessions.find(session, auth.hash_of(token), context.now()) if token else None
        if found is not None and auth.is_valid(found.key, context.now()):
            return auth.principal_of(found.key)
        if context.has_keys(lambda: keys.any_key(session)):
            raise LoginNeeded
    auth.check_local(request)
    return LOCAL


ENTERS = Depends(_enter)
"""For every page but the login."""


def may(scope: Scope) -> Any:
    """The dependency of a form that only holders of a scope may send."""

    def check(request: Request) -> None:
        _check(request.state.principal, scope)

    return Depends(check)


def _check(principal: Principal, scope: Scope) -> None:
    if not principal.may(scope):
        raise Forbidden(
            "scope_missing", f"this needs a key with the scope {scope.value}; key {principal.name} lacks it"
        )
