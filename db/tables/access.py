"""Tables for access control: projects, API keys, page sessions, and stored responses to requests with an idempotency
key."""

from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey, String, Text
from sqlalchemy.orm import Mapped, mapped_column, relationship

from shardtune.api_schemas.access.keys import Quotas, Scope
from shardtune.api_schemas.retuning.retunes import RetunePolicy
from shardtune.db.tables.base import Row
from shardtune.db.tables.types import Stored


class ProjectRow(Row):
    """Table row of a project, which owns studies, keys and recommendations."""

    __tablename__ = "projects"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    quotas: Mapped[Quotas] = mapped_column(Stored(Quotas))
    requires_approval: Mapped[bool] = mapped_column(default=False)
    retuning: Mapped[RetunePolicy | None] = mapped_column(Stored(RetunePolicy))
    """Policy of the project for measuring recommendations again; None if the project has the default policy."""
    created_at: Mapped[datetime]


class ApiKeyRow(Row):
    """Table row of an API key. Only the hash of its random secret is stored, so that nobody can use a key that was
    read from the table."""

    __tablename__ = "api_keys"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    prefix: Mapped[str] = mapped_column(String(32))
    secret_sha256: Mapped[str] = mapped_column(String(64), unique=True)
    name: Mapped[str] = mapped_column(String(100))
    holder_id: Mapped[str] = mapped_column(String(32), index=True)
    """Id of the first key in a chain of keys that replaced each other. It stands for the key's holder, whichever of
    these keys is used."""
    project_id: Mapped[str | None] = mapped_column(ForeignKey("projects.id"), index=True)
    """Project that the key is limited to; None means all projects."""
    scopes: Mapped[tuple[Scope, ...]] = mapped_column(Stored(tuple[Scope, ...]))
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime | None]
    last_used_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]

    project: Mapped[ProjectRow | None] = relationship()


class PageSessionRow(Row):
    """Table row of a browser session, which began by logging in with a key. The session's token is stored as a hash
    only, like the secrets of keys."""

    __tablename__ = "page_sessions"

    token_sha256: Mapped[str] = mapped_column(String(64), primary_key=True)
    key_id: Mapped[str] = mapped_column(ForeignKey("api_keys.id", ondelete="CASCADE"), index=True)
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime] = mapped_column(index=True)

    key: Mapped[ApiKeyRow] = relationship()


class IdempotentRow(Row):
    """Table row of the response to a POST request with an idempotency key, written in the same transaction as the
    change that the request makes."""

    __tablename__ = "idempotent_requests"

    scope: Mapped[str] = mapped_column(String(40), primary_key=True)
    """Owner of the idempotency key; keys with the same text that belong to different projects are independent."""
    key: Mapped[str] = mapped_column(String(255), primary_key=True)
    request_sha256: Mapped[str] = mapped_column(String(64))
    status: Mapped[int | None]
    answer: Mapped[Any | None] = mapped_column(Text)
    """JSON of the response, as sent."""
    created_at: Mapped[datetime] = mapped_column(index=True)
