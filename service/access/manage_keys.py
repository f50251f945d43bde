"""Create, list, rotate and revoke API keys. service.access.auth authenticates requests by key."""

import logging
import secrets
from datetime import timedelta

from sqlalchemy.orm import Session

from shardtune.api_schemas.access.credentials import hash_of
from shardtune.api_schemas.access.keys import ApiKey, ApiKeyPage, KeyCreated, KeySpec, RotateRequest, Scope
from shardtune.db.queries import keys
from shardtune.db.tables.access import ApiKeyRow
from shardtune.service.access import auth
from shardtune.service.http import paging
from shardtune.service.http.errors import Conflict, Forbidden, NotFound
from shardtune.service.http.idempotent_requests import NO_KEY, IdempotencyKey
from shardtune.service.process.context import Context

log = logging.getLogger(__name__)

_SECRET_BYTES = 32
_PREFIX = "shardtune_"
_PREFIX_LENGTH = len(_PREFIX) + 6


def create(context: Context, spec: KeySpec, idempotency: IdempotencyKey = NO_KEY) -> KeyCreated:
    """Create an API key, and its project if the project does not exist.

    Raises:
        Forbidden: an administrator of one project asks for a key beyond that project.
    """
    project_id = spec.project_id
    if not context.principal.sees(project_id) or (project_id is None and context.principal.project_id is not None):
        own_project = context.principal.project_id
        raise Forbidden(
            "scope_missing", f"key {context.principal.name} administers project {own_project} only; name that one"
        )
    with idempotency.write(context) as session:
        if project_id is not None:
            keys.put_project(session, project_id, context.now())
        created = _insert_key(context, session, spec.name, project_id, spec.scopes, spec.expires_in_days)
        log.info("key created", extra={"key": created.key.key_id, "project": project_id})
        # A repeated request gets the stored answer without the secret: it was shown once, and must be rotated if it was
        # lost.
        return idempotency.answer(session, created, 201, stored=_without_secret(created))


def list_keys(context: Context, token: str | None, limit: int) -> ApiKeyPage:
    """API keys of the projects visible to the sender, newest first."""
    project_id = context.principal.project_id
    after = paging.parse_token(token, [project_id], paging.moment_and_id)
    with context.db.read() as session:
        rows = keys.newest(session, project_id, after, limit + 1)
        page_rows, next_token = paging.split_page(
            rows, limit, [project_id], lambda row: [row.created_at.isoformat(), row.id]
        )
        return ApiKeyPage(keys=tuple(_view(context, row) for row in page_rows), next_page_token=next_token)


def rotate(context: Context, key_id: str, request: RotateRequest, idempotency: IdempotencyKey = NO_KEY) -> KeyCreated:
    """Replace an API key by one with a new secret; the old secret ends now, or after the grace period.

    Raises:
        Conflict: the key is not valid any more.
    """
    with idempotency.write(context) as session:
        old = _lock_key(context, session, key_id)
        if not auth.is_valid(old, context.now()):
            raise Conflict("key_revoked", f"key {key_id} was revoked or has expired; create a new one")
        created = _insert_key(
            context, session, old.name, old.project_id, old.scopes, request.expires_in_days, old.holder_id
        )
        end = context.now() + timedelta(seconds=request.grace_s)
        # Never extended: a grace period must not outlast the key's own end.
        old.expires_at = end if old.expires_at is None else min(end, old.expires_at)
        log.info("key rotated", extra={"key": key_id, "new_key": created.key.key_id})
        return idempotency.answer(session, created, 201, stored=_without_secret(created))


def revoke(context: Context, key_id: str, idempotency: IdempotencyKey = NO_KEY) -> ApiKey:
    """Revoke an API key at once. Its row stays in the database, so that the history of decisions can still name the
    key.
    """
    with idempotency.write(context) as session:
        row = _lock_key(context, session, key_id)
        if row.revoked_at is None:
            row.revoked_at = context.now()
            log.info("key revoked", extra={"key": key_id})
        return idempotency.answer(session, _view(context, row))


def _insert_key(
    context: Context,
    session: Session,
    name: str,
    project_id: str | None,
    scopes: tuple[Scope, ...],
    expires_in_days: float | None,
    holder_id: str | None = None,
) -> KeyCreated:
    secret = _PREFIX + secrets.token_urlsafe(_SECRET_BYTES)
    now = context.now()
    key_id = f"key-{secrets.token_hex(6)}"
    row = ApiKeyRow(
        id=key_id,
        holder_id=holder_id or key_id,
        prefix=secret[:_PREFIX_LENGTH],
        secret_sha256=hash_of(secret),
        name=name,
        project_id=project_id,
        scopes=tuple(sorted(set(scopes))),
        created_at=now,
        expires_at=now + timedelta(days=expires_in_days) if expires_in_days is not None else None,
    )
    session.add(row)
    session.flush()
    return KeyCreated(key=_view(context, row), secret=secret)


def _without_secret(created: KeyCreated) -> KeyCreated:
    """Response to the creation of a key without the key's secret. This form may be stored, so that it can be sent
    again when the request is repeated.
    """
    # A secret in the database would be worth stealing.
    return created.model_copy(update={"secret": None})  # nosec B105 # The secret is left out.


def _lock_key(context: Context, session: Session, key_id: str) -> ApiKeyRow:
    row = keys.lock(session, key_id)
    project_id = context.principal.project_id
    if row is None or project_id not in (None, row.project_id):
        message = f"key {key_id} does not exist"
        raise NotFound("unknown_key", message, api_remedy="GET /v1/keys lists those that do")
    return row


def _view(context: Context, row: ApiKeyRow) -> ApiKey:
    return ApiKey(
        key_id=row.id,
        prefix=row.prefix,
        name=row.name,
        project_id=row.project_id,
        scopes=row.scopes,
        created_at=row.created_at,
        expires_at=row.expires_at,
        last_used_at=row.last_used_at,
        revoked_at=row.revoked_at,
        is_valid=auth.is_valid(row, context.now()),
    )
