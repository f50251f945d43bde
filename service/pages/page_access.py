"""Who reads the pages: the holder of a key who has logged in, or anybody on this machine while there are no keys."""

import secrets
from datetime import timedelta
from typing import Any

from fastapi import Depends, Request, Security
from fastapi.security import SecurityScopes
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool

from shardtune.db.queries import keys, page_sessions
from shardtune.service.access import actions, auth, local_only
from shardtune.service.access.actions import Action
from shardtune.service.http.errors import Unauthorized
from shardtune.service.pages import cookies
from shardtune.service.process.context import Context, context_of
from shardtune.service.process.principal import LOCAL, Principal

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
    actions.check(principal, Action.READ_STUDIES)
    auth.count(context, principal)
    token = secrets.token_urlsafe(32)
    with context.db.write() as session:
        now = context.now()
        page_sessions.add(session, auth.hash_of(token), principal.key_id, now, now + LIFETIME)
    return token


def log_out(context: Context, token: str) -> None:
    """End a session; unknown ones are none."""
    with context.db.write() as session:
        page_sessions.end(session, auth.hash_of(token))


async def enter(request: Request) -> None:
    """Know who sends a form before anything of it is read.

    Raises:
        LoginNeeded: nobody, and there are keys.
        Forbidden: there are no keys, and it does not come from this machine.
    """
    await run_in_threadpool(_sender, request, context_of(request))


def is_still_in(context: Context, token: str) -> bool:
    """Whether who was let in with this cookie would be let in again: for what stays open, such as a stream."""
    if context.principal.key_id is None:
        return auth.is_still_good(context)
    with context.db.read() as session:
        return _of_session(context, session, token) is not None


def _enter(request: Request) -> None:
    context = context_of(request)
    principal = _sender(request, context)
    actions.check(principal, Action.READ_STUDIES)
    auth.count(context, principal)
    request.state.principal = principal


def _sender(request: Request, context: Context) -> Principal:
    """Looked up once for a request."""
    known = getattr(request.state, "sender", None)
    if isinstance(known, Principal):
        return known
    request.state.sender = principal = _look_up(request, context)
    return principal


def _look_up(request: Request, context: Context) -> Principal:
    with context.db.read() as session:
        principal = _of_session(context, session, cookies.read(request, cookies.SESSION))
        if principal is not None:
            return principal
        if context.settings.require_keys or context.has_keys(lambda: keys.any_key(session.connection())):
            raise LoginNeeded
    local_only.check(request)
    return LOCAL


def _of_session(context: Context, session: Session, token: str) -> Principal | None:
    found = page_sessions.find(session, auth.hash_of(token), context.now()) if token else None
    return auth.principal_of(found.key) if found is not None and auth.is_valid(found.key, context.now()) else None


ENTERS = Depends(_enter)
"""For every page but the login."""


def may(action: Action) -> Any:
    """The dependency of a form or page, for those who may do what it does."""
    return Security(_permit, scopes=[action.value])


def _permit(request: Request, wanted: SecurityScopes) -> None:
    for action in wanted.scopes:
        actions.check(request.state.principal, Action(action))
