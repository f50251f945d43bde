"""Tables of who may do what: projects, API keys, and the answers to requests that carry an idempotency key."""

from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey, String, Text
from sqlalchemy.orm import Mapped, mapped_column, relationship

from shardtune.api_schemas.access.keys import Quotas, Scope
from shardtune.api_schemas.retuning.retunes import RetunePolicy
from shardtune.db.tables.base import Row
from shardtune.db.tables.types import Stored


class ProjectRow(Row):
    """The owner of studies, keys and recommendations."""

    __tablename__ = "projects"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    quotas: Mapped[Quotas] = mapped_column(Stored(Quotas))
    requires_approval: Mapped[bool] = mapped_column(default=False)
    retuning: Mapped[RetunePolicy | None] = mapped_column(Stored(RetunePolicy))
    """Policy of retuning; None: the defaults."""
    created_at: Mapped[datetime]


class ApiKeyRow(Row):
    """A key. Of its secret only the hash is here: it is random, so that a dump of the table opens nothing."""

    __tablename__ = "api_keys"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    prefix: Mapped[str] = mapped_column(String(32))
    secret_sha256: Mapped[str] = mapped_column(String(64), unique=True)
    name: Mapped[str] = mapped_column(String(100))
    holder_id: Mapped[str] = mapped_column(String(32), index=True)
    """First of the keys that replaced each other: one holder, whichever of their secrets is sent."""
    project_id: Mapped[str | None] = mapped_column(ForeignKey("projects.id"), index=True)
    """Project of the key; None: every project."""
    scopes: Mapped[tuple[Scope, ...]] = mapped_column(Stored(tuple[Scope, ...]))
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime | None]
    last_used_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]

    project: Mapped[ProjectRow | None] = relationship()


class PageSessionRow(Row):
    """A browser that logged in with a key. Its token is stored as a hash, as keys are."""

    __tablename__ = "page_sessions"

    token_sha256: Mapped[str] = mapped_column(String(64), primary_key=True)
    key_id: Mapped[str] = mapped_column(ForeignKey("api_keys.id", ondelete="CASCADE"), index=True)
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime] = mapped_column(index=True)

    key: Mapped[ApiKeyRow] = relationship()


class IdempotentRow(Row):
    """The answer to a POST with an idempotency key, written in the transaction of the change."""

    __tablename__ = "idempotent_requests"

    scope: Mapped[str] = mapped_column(String(40), primary_key=True)
    """Owner of the key: a key of one project means nothing in another."""
    key: Mapped[str] = mapped_column(String(255), primary_key=True)
    request_sha256: Mapped[str] = mapped_column(String(64))
    status: Mapped[int | None]
    answer: Mapped[Any | None] = mapped_column(Text)
    """JSON, as it was sent."""
    created_at: Mapped[datetime] = mapped_column(index=True)
