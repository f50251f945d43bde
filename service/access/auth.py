"""API keys at the door: who sends a request, and whether the route is for them.

Without any key in the database everything is allowed, to requests from this machine (service.access.local_only). With
the first key the door is shut for good: revoked keys count, so that revoking the last one opens nothing.
"""

import hashlib
import logging
from datetime import datetime, timedelta
from functools import partial
from typing import Annotated, Any

from fastapi import Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer, SecurityScopes
from sqlalchemy.exc import OperationalError
from starlette.concurrency import run_in_threadpool

from shardtune.db.queries import keys
from shardtune.db.tables.access import ApiKeyRow
from shardtune.service.access import actions, local_only
from shardtune.service.access.actions import Action
from shardtune.service.http.errors import TooMany, Unauthorized
from shardtune.service.process.context import Context, context_of
from shardtune.service.process.principal import LOCAL, Principal

log = logging.getLogger(__name__)

_NOTE_USE_EVERY = timedelta(minutes=5)
_HOW = "send `Authorization: Bearer KEY`; the client and the worker read SHARDTUNE_API_KEY"

_bearer = HTTPBearer(
    scheme_name="api_key", auto_error=False, description="An API key; `shardtune keys create` makes one."
)


def hash_of(secret: str) -> str:
    """What is stored of a secret. Secrets are random (256 bits), so that a plain hash cannot be searched."""
    return hashlib.sha256(secret.encode()).hexdigest()


def is_valid(row: ApiKeyRow, now: datetime) -> bool:
    """Neither revoked nor expired."""
    return row.revoked_at is None and (row.expires_at is None or row.expires_at > now)


def authenticate(context: Context, secret: str | None) -> Principal | None:
    """Whom a secret stands for; None: there are no keys at all, and everybody local may do everything.

    Raises:
        Unauthorized: no key where one is needed, or one that does not count.
    """
    row = None
    if secret:
        with context.db.read() as session:
            row = keys.by_secret(session, hash_of(secret))
    if row is None and not context.has_keys(partial(_any_key, context)):
        _check_may_be_without(context)
        return None
    if not secret:
        raise Unauthorized("key_required", f"this service needs an API key; {_HOW}")
    if row is None or not is_valid(row, context.now()):
        raise Unauthorized("key_invalid", "the API key is unknown, expired or revoked; ask an administrator for one")
    _note_use(context, row)
    return principal_of(row)


def _check_may_be_without(context: Context) -> None:
    """Whether anybody may do anything before there is a key.

    Raises:
        Unauthorized: the operator demands keys, and there is none yet.
    """
    if context.settings.require_keys:
        raise Unauthorized(
            "key_required",
            "SHARDTUNE_REQUIRE_KEYS is set, and there is no API key yet: make the first one with "
            "`shardtune keys create --name admin --scope admin --all-projects` on the service's host",
        )


def is_still_good(context: Context) -> bool:
    """Whether who sent this request could send it again: for what stays open, such as a stream."""
    key_id = context.principal.key_id
    if key_id is None:
        return not _any_key(context)
    with context.db.read() as session:
        row = keys.get(session, key_id)
        return row is not None and is_valid(row, context.now())


def _any_key(context: Context) -> bool:
    with context.db.look() as connection:
        return keys.any_key(connection)


def principal_of(row: ApiKeyRow) -> Principal:
    """Whom a key stands for."""
    return Principal(
        name=row.name,
        project_id=row.project_id,
        scopes=frozenset(row.scopes),
        key_id=row.id,
        holder_id=row.holder_id,
    )


def requires(action: Action) -> Any:
    """The dependency of a route, for those who may do what it does."""
    return Security(_authorize, scopes=[action.value])


async def enter(request: Request) -> None:
    """Know who sends a request to the API before anything of its body is read.

    Raises:
        Unauthorized: no key where one is needed, or one that does not count.
        Forbidden: there are no keys, and it does not come from this machine.
    """
    credentials = await _bearer(request)
    await run_in_threadpool(_sender, request, context_of(request), credentials)


def _known(request: Request) -> Principal | None:
    """The sender is looked up once for a request."""
    known = getattr(request.state, "sender", None)
    return known if isinstance(known, Principal) else None


def _sender(request: Request, context: Context, credentials: HTTPAuthorizationCredentials | None) -> Principal:
    principal = authenticate(context, credentials.credentials if credentials else None)
    if credentials and principal is not None:
        context.senders.note(credentials.credentials, principal)
    if principal is None:
        local_only.check(request)
        principal = LOCAL
    request.state.sender = principal
    return principal


async def _authorize(
    request: Request,
    wanted: SecurityScopes,
    credentials: Annotated[HTTPAuthorizationCredentials | None, Security(_bearer)],
) -> None:
    context = context_of(request)
    principal = _known(request)
    if principal is None:
        principal = await run_in_threadpool(_sender, request, context, credentials)
    for action in wanted.scopes:
        actions.check(principal, Action(action))
    if Action.LEASE.value not in wanted.scopes and principal.project_id is not None:
        await run_in_threadpool(count, context, principal)
    request.state.principal = principal


def count(context: Context, principal: Principal) -> None:
    """Against the project's requests per minute. Not what workers ask: a heartbeat rejected would cost a run.

    Raises:
        TooMany: it is one too many for this minute.
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
        raise TooMany(
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
            keys.used(session, row.id, now)
    except OperationalError:
        # A busy database is no reason to reject a good key.
        log.warning("the use of a key could not be noted", extra={"key": row.id})
