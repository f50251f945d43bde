"""Projects, API keys, answers to repeatable requests; studies and workers belong to a project.

Revision ID: 0006
Revises: 0005
"""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "projects",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("quotas", sa.JSON(), nullable=False),
        sa.Column("requires_approval", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_projects")),
    )
    op.execute(
        "INSERT INTO projects (id, quotas, requires_approval, created_at) "
        "VALUES ('default', '{}', false, CURRENT_TIMESTAMP)"
    )
    op.create_table(
        "api_keys",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("prefix", sa.String(length=32), nullable=False),
        sa.Column("secret_sha256", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("project_id", sa.String(length=32), nullable=True),
        sa.Column("scopes", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("last_used_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_api_keys_project_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_keys")),
        sa.UniqueConstraint("secret_sha256", name=op.f("uq_api_keys_secret_sha256")),
    )
    op.create_index(op.f("ix_api_keys_project_id"), "api_keys", ["project_id"])
    op.create_table(
        "idempotent_requests",
        sa.Column("scope", sa.String(length=40), nullable=False),
        sa.Column("key", sa.String(length=255), nullable=False),
        sa.Column("request_sha256", sa.String(length=64), nullable=False),
        sa.Column("status", sa.Integer(), nullable=True),
        sa.Column("answer", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("scope", "key", name=op.f("pk_idempotent_requests")),
    )
    op.create_index(op.f("ix_idempotent_requests_created_at"), "idempotent_requests", ["created_at"])
    with op.batch_alter_table("studies") as batch:
        batch.add_column(sa.Column("project_id", sa.String(length=32), nullable=False, server_default="default"))
        batch.create_foreign_key(op.f("fk_studies_project_id"), "projects", ["project_id"], ["id"])
        batch.create_index("ix_studies_project", ["project_id", "created_at", "id"])
    with op.batch_alter_table("workers") as batch:
        batch.add_column(sa.Column("project_id", sa.String(length=32), nullable=True))
        batch.create_foreign_key(op.f("fk_workers_project_id"), "projects", ["project_id"], ["id"])
    op.create_index("ix_attempts_finished", "attempts", ["finished_at"])


def downgrade() -> None:
    op.drop_index("ix_attempts_finished", table_name="attempts")
    with op.batch_alter_table("workers") as batch:
        batch.drop_constraint(op.f("fk_workers_project_id"), type_="foreignkey")
        batch.drop_column("project_id")
    with op.batch_alter_table("studies") as batch:
        batch.drop_index("ix_studies_project")
        batch.drop_constraint(op.f("fk_studies_project_id"), type_="foreignkey")
        batch.drop_column("project_id")
    op.drop_table("idempotent_requests")
    op.drop_table("api_keys")
    op.drop_table("projects")
