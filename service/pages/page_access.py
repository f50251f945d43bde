"""Access to the pages: a session of a logged-in API key, or any request from this machine while there are no keys."""

import secrets
from datetime import timedelta
from typing import Any

from fastapi import Depends, Request, Security
from fastapi.security import SecurityScopes
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool

from shardtune.api_schemas.access.credentials import hash_of
from shardtune.db.queries import keys, page_sessions
from shardtune.service.access import actions, auth, local_only
from shardtune.service.access.actions import Action
from shardtune.service.access.route_scopes import check_route_scopes
from shardtune.service.http.errors import Unauthorized
from shardtune.service.pages import cookies
from shardtune.service.process.context import Context, context_of
from shardtune.service.process.principal import LOCAL, Principal

LIFETIME = timedelta(hours=12)


class LoginNeeded(Exception):
    """Error that the service requires an API key and this browser has not logged in with one."""


def log_in(context: Context, secret: str) -> str:
    """Start a session with an API key that may read studies, and return the session's token.

    Raises:
        Unauthorized: the key does not exist.
        Forbidden: the key may not read studies, such as the key of a worker.
    """
    principal = auth.authenticate_key(context, secret.strip())
    if principal is None or principal.key_id is None:
        raise Unauthorized("key_invalid", "this service has no keys, and needs no login from its own machine")
    actions.check_scope(principal, Action.READ_STUDIES)
    auth.count_request(context, principal)
    # Only the token's hash is stored: a copy of the database opens no session.
    token = secrets.token_urlsafe(32)
    with context.db.write() as session:
        now = context.now()
        page_sessions.add(session, hash_of(token), principal.key_id, now, now + LIFETIME)
    return token


def log_out(context: Context, token: str) -> None:
    """End a session; an unknown token has no effect."""
    with context.db.write() as session:
        page_sessions.end(session, hash_of(token))


async def identify_sender(request: Request) -> None:
    """Identify the sender of a form, and check the scopes of its route, before its body is read.

    Raises:
        LoginNeeded: the browser is not logged in although API keys exist.
        Forbidden: the key lacks a scope, or no API keys exist and the request comes from another machine.
    """
    principal = await run_in_threadpool(_identify_once, request, context_of(request))
    check_route_scopes(request, principal)


def session_is_valid(context: Context, token: str) -> bool:
    """Whether a session is still valid; long responses such as streams check this again and again."""
    if context.principal.key_id is None:
        return auth.is_still_authorized(context)
    with context.db.read() as session:
        return _principal_of_session(context, session, token) is not None


def _require_login(request: Request) -> None:
    context = context_of(request)
    principal = _identify_once(request, context)
    actions.check_scope(principal, Action.READ_STUDIES)
    auth.count_request(context, principal)
    request.state.principal = principal


def _identify_once(request: Request, context: Context) -> Principal:
    """Identify the sender of a request; the result is kept until the request ends."""
    sender = getattr(request.state, "sender", None)
    if isinstance(sender, Principal):
        return sender
    # The body's check and the route's both need it: one query instead of two.
    request.state.sender = principal = _identify(request, context)
    return principal


def _identify(request: Request, context: Context) -> Principal:
    with context.db.read() as session:
        principal = _principal_of_session(context, session, cookies.read(request, cookies.SESSION))
        if principal is not None:
            return principal
        if context.settings.require_keys or context.has_keys(lambda: keys.any_key(session.connection())):
            raise LoginNeeded
    local_only.check_is_local(request)
    return LOCAL


def _principal_of_session(context: Context, session: Session, token: str) -> Principal | None:
    row = page_sessions.find(session, hash_of(token), context.now()) if token else None
    return auth.principal_of(row.key) if row is not None and auth.is_valid(row.key, context.now()) else None


LOGIN_REQUIRED = Depends(_require_login)
"""Dependency of every page except the login page: it requires a login."""


def requires(action: Action) -> Any:
    """Return the dependency of a form or page that requires the permission for a given action."""
    return Security(_check_scopes, scopes=[action.value])


def _check_scopes(request: Request, scopes: SecurityScopes) -> None:
    for action in scopes.scopes:
        actions.check_scope(request.state.principal, Action(action))
