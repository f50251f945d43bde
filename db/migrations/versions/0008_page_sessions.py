"""Browsers that logged in to the pages.

Revision ID: 0008
Revises: 0007
"""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "page_sessions",
        sa.Column("token_sha256", sa.String(length=64), nullable=False),
        sa.Column("key_id", sa.String(length=32), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["key_id"], ["api_keys.id"], name=op.f("fk_page_sessions_key_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("token_sha256", name=op.f("pk_page_sessions")),
    )
    op.create_index(op.f("ix_page_sessions_key_id"), "page_sessions", ["key_id"])
    op.create_index(op.f("ix_page_sessions_expires_at"), "page_sessions", ["expires_at"])


def downgrade() -> None:
    op.drop_table("page_sessions")
