"""Queries on browser sessions of the web pages."""

from datetime import datetime

from sqlalchemy import delete, select
from sqlalchemy.orm import Session, joinedload

from shardtune.db.tables.access import PageSessionRow


def add(session: Session, token_sha256: str, key_id: str, now: datetime, expires_at: datetime) -> None:
    """Add a browser session, and delete expired ones."""
    session.execute(delete(PageSessionRow).where(PageSessionRow.expires_at <= now))
    session.add(PageSessionRow(token_sha256=token_sha256, key_id=key_id, created_at=now, expires_at=expires_at))


def find(session: Session, token_sha256: str, now: datetime) -> PageSessionRow | None:
    """Return the browser session of a token with its API key; None if it does not exist or has expired."""
    query = select(PageSessionRow).where(PageSessionRow.token_sha256 == token_sha256, PageSessionRow.expires_at > now)
    return session.scalars(query.options(joinedload(PageSessionRow.key))).one_or_none()


def end(session: Session, token_sha256: str) -> None:
    """Delete a browser session (log out)."""
    session.execute(delete(PageSessionRow).where(PageSessionRow.token_sha256 == token_sha256))
