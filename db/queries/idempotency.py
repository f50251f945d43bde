"""Queries on stored responses to requests with an idempotency key."""

from datetime import datetime

from sqlalchemy import delete, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from shardtune.db.tables.access import IdempotentRow


def claim(session: Session, scope: str, key: str, request_sha256: str, now: datetime) -> bool:
    """Claim an idempotency key; return False if a request has used it already. On Postgres, this waits for the end of
    another transaction that is just claiming the key."""
    dialect = session.get_bind().dialect.name
    insert = postgresql.insert if dialect == "postgresql" else sqlite.insert
    values = {"scope": scope, "key": key, "request_sha256": request_sha256, "created_at": now}
    statement = insert(IdempotentRow).values(values).on_conflict_do_nothing().returning(IdempotentRow.key)
    return session.execute(statement).first() is not None


def find(session: Session, scope: str, key: str) -> IdempotentRow | None:
    """Return the row of an idempotency key; None if it does not exist."""
    query = select(IdempotentRow).where(IdempotentRow.scope == scope, IdempotentRow.key == key)
    return session.scalars(query.execution_options(populate_existing=True)).one_or_none()


def get(session: Session, scope: str, key: str) -> IdempotentRow:
    """Return the stored row of an idempotency key that an earlier request has used."""
    row = find(session, scope, key)
    assert row is not None, "it is taken"
    return row


def store(session: Session, scope: str, key: str, status: int, answer: str) -> None:
    """Store the response of the request that claimed the idempotency key."""
    session.execute(
        update(IdempotentRow)
        .where(IdempotentRow.scope == scope, IdempotentRow.key == key)
        .values(status=status, answer=answer)
        .execution_options(synchronize_session=False)
    )


def is_answered(session: Session, scope: str, key: str) -> bool:
    return get(session, scope, key).status is not None


def forget(session: Session, before: datetime, scope: str, key: str) -> None:
    """Delete a stored response older than a given moment, so that its idempotency key can be used again."""
    old = (IdempotentRow.scope == scope, IdempotentRow.key == key, IdempotentRow.created_at < before)
    session.execute(delete(IdempotentRow).where(*old).execution_options(synchronize_session=False))
