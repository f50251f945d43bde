"""Authenticate API keys, and check that the sender may use a route.

While the database has no key, every request of this user on this machine is allowed (service.access.local_only). The
first key ends this for good: revoked keys count, so revoking the last key does not open the service again.
"""

import logging
import secrets
from datetime import datetime, timedelta
from functools import partial
from typing import Annotated, Any

from fastapi import Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer, SecurityScopes
from sqlalchemy.exc import OperationalError
from starlette.concurrency import run_in_threadpool

from shardtune.api_schemas.access.credentials import hash_of
from shardtune.db.queries import keys
from shardtune.db.tables.access import ApiKeyRow
from shardtune.service.access import actions, local_only
from shardtune.service.access.actions import Action
from shardtune.service.access.route_scopes import check_route_scopes
from shardtune.service.http.errors import TooManyRequests, Unauthorized
from shardtune.service.process.context import Context, context_of
from shardtune.service.process.principal import LOCAL, OWN_CLIENT, Principal

log = logging.getLogger(__name__)

# Written at most this often: a row update per request would make all requests of a key queue for its row.
_NOTE_USE_EVERY = timedelta(minutes=5)
_KEY_HINT = "send `Authorization: Bearer KEY`; the client and the worker read SHARDTUNE_API_KEY"

_bearer = HTTPBearer(
    scheme_name="api_key", auto_error=False, description="An API key; `shardtune keys create` makes one."
)


def is_valid(row: ApiKeyRow, now: datetime) -> bool:
    """Whether an API key is neither revoked nor expired."""
    return row.revoked_at is None and (row.expires_at is None or row.expires_at > now)


def authenticate_key(context: Context, secret: str | None) -> Principal | None:
    """Principal (identity and permissions) that an API key's secret belongs to. None if no keys exist, so that anybody
    on this machine may do everything.

    Raises:
        Unauthorized: a key is required and missing, or invalid.
    """
    if secret and _is_own_key(context, secret):
        return OWN_CLIENT
    row = None
    if secret:
        with context.db.read() as session:
            row = keys.by_secret(session, hash_of(secret))
    # Looked up only without a valid key; once a key was made, the answer is remembered in the process.
    if row is None and not context.has_keys(partial(_any_key, context)):
        _check_keys_optional(context)
        return None
    if not secret:
        raise Unauthorized("key_required", f"this service needs an API key; {_KEY_HINT}")
    if row is None or not is_valid(row, context.now()):
        raise Unauthorized("key_invalid", "the API key is unknown, expired or revoked; ask an administrator for one")
    _note_use(context, row)
    return principal_of(row)


def _is_own_key(context: Context, secret: str) -> bool:
    """Whether a secret is the API key of the command (`shardtune tune` or `best`) that started this service for its
    own use.
    """
    own = context.own_key_hash
    return own is not None and secrets.compare_digest(hash_of(secret), own)


def _check_keys_optional(context: Context) -> None:
    """Check that the operator allows requests without an API key; called while the database has no key.

    Raises:
        Unauthorized: keys are required, and none exists yet.
    """
    if context.settings.require_keys:
        raise Unauthorized(
            "key_required",
            "SHARDTUNE_REQUIRE_KEYS is set, and there is no API key yet: make the first one with "
            "`shardtune keys create --name admin --scope admin --all-projects` on the service's host",
        )


def is_still_authorized(context: Context) -> bool:
    """Whether the request's API key is still valid. It is checked again while a response such as an event stream
    stays open. If the request has no key, return whether the database still has no keys.
    """
    if context.principal.is_own_client:
        return True
    key_id = context.principal.key_id
    # A request without a key was allowed because no key existed; the first key ends it.
    if key_id is None:
        return not _any_key(context)
    with context.db.read() as session:
        row = keys.get(session, key_id)
        return row is not None and is_valid(row, context.now())


def _any_key(context: Context) -> bool:
    with context.db.read_connection() as connection:
        return keys.any_key(connection)


def principal_of(row: ApiKeyRow) -> Principal:
    """Principal (identity and permissions) of the sender that uses an API key."""
    return Principal(
        name=row.name,
        project_id=row.project_id,
        scopes=frozenset(row.scopes),
        key_id=row.id,
        holder_id=row.holder_id,
    )


def requires(action: Action) -> Any:
    """Security dependency for a route, which rejects a request whose sender may not perform the action."""
    return Security(_authorize, scopes=[action.value])


async def authenticate_before_body(request: Request) -> None:
    """Authenticate the sender of an API request, and check the scopes of its route, before its body is read.

    Raises:
        Unauthorized: a key is required and missing, or invalid.
        Forbidden: the key lacks a scope, or no keys exist and the request does not come from this machine.
    """
    credentials = await _bearer(request)
    principal = await run_in_threadpool(_authenticate_request, request, context_of(request), credentials)
    check_route_scopes(request, principal)


def _authenticated_sender(request: Request) -> Principal | None:
    """Sender of a request, if it was authenticated before the request's body was read; else None."""
    sender = getattr(request.state, "sender", None)
    return sender if isinstance(sender, Principal) else None


def _authenticate_request(
    request: Request, context: Context, credentials: HTTPAuthorizationCredentials | None
) -> Principal:
    principal = authenticate_key(context, credentials.credentials if credentials else None)
    if credentials and principal is not None:
        context.known_senders.remember(credentials.credentials, principal)
    if principal is None:
        local_only.check_is_local(request)
        principal = LOCAL
    request.state.sender = principal
    return principal


async def _authorize(
    request: Request,
    required: SecurityScopes,
    credentials: Annotated[HTTPAuthorizationCredentials | None, Security(_bearer)],
) -> None:
    context = context_of(request)
    principal = _authenticated_sender(request)
    if principal is None:
        principal = await run_in_threadpool(_authenticate_request, request, context, credentials)
    for action in required.scopes:
        actions.check_scope(principal, Action(action))
    # Requests of workers are not limited: a rejected heartbeat would cost a run.
    if Action.LEASE.value not in required.scopes and principal.project_id is not None:
        await run_in_threadpool(count_request, context, principal)
    request.state.principal = principal


def count_request(context: Context, principal: Principal) -> None:
    """Count a request against its project's limit of requests per minute.

    Raises:
        TooMany: the limit is exceeded.
    """
    if principal.project_id is None:
        return
    with context.db.read() as session:
        project = keys.project(session, principal.project_id)
        limit = project.quotas.requests_per_minute if project else None
    if limit is None:
        return
    wait_s = context.rates.count(principal.project_id, limit, context.now())
    if wait_s is not None:
        raise TooManyRequests(
            "quota_requests",
            f"project ({principal.project_id}) may send {limit} requests a minute; wait for the next one, "
            "or raise the quota",
            wait_s,
        )


def _note_use(context: Context, row: ApiKeyRow) -> None:
    now = context.now()
    if row.last_used_at is not None and now - row.last_used_at < _NOTE_USE_EVERY:
        return
    try:
        with context.db.write() as session:
            keys.note_use(session, row.id, now)
    except OperationalError:
        # A busy database must not make the service reject a valid key.
        log.warning("the use of a key could not be noted", extra={"key": row.id})
