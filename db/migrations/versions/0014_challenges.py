"""Errands of the service, what supersedes a recommendation, canaries.

Revision ID: 0014
Revises: 0013
"""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("studies") as batch:
        batch.add_column(sa.Column("errand", sa.JSON(), nullable=True))
    with op.batch_alter_table("workers") as batch:
        batch.add_column(sa.Column("condition", sa.Text(), nullable=True))
    with op.batch_alter_table("best_configs") as batch:
        batch.add_column(sa.Column("superseded_by", sa.String(length=32), nullable=True))
    op.create_table(
        "canaries",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("project_id", sa.String(length=32), nullable=False),
        sa.Column("study_key", sa.String(length=32), nullable=False),
        sa.Column("recommendation_id", sa.String(length=32), nullable=False),
        sa.Column("worker_id", sa.String(length=32), nullable=False),
        sa.Column("study_id", sa.String(length=32), nullable=False),
        sa.Column("tick", sa.Integer(), nullable=False),
        sa.Column("role", sa.String(length=8), nullable=False),
        sa.Column("verdict", sa.String(length=16), nullable=True),
        sa.Column("tokens_per_s_per_gpu", sa.Double(), nullable=True),
        sa.Column("change", sa.Double(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_canaries_project_id")),
        sa.ForeignKeyConstraint(
            ["recommendation_id"], ["recommendations.id"], name=op.f("fk_canaries_recommendation_id")
        ),
        sa.ForeignKeyConstraint(["worker_id"], ["workers.id"], name=op.f("fk_canaries_worker_id")),
        sa.ForeignKeyConstraint(["study_id"], ["studies.id"], name=op.f("fk_canaries_study_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_canaries")),
        sa.UniqueConstraint(
            "project_id", "study_key", "tick", "role", name=op.f("uq_canaries_project_id_study_key_tick_role")
        ),
    )
    op.create_index("ix_canaries_verdict", "canaries", ["verdict", "created_at"])
    op.create_index("ix_canaries_case", "canaries", ["project_id", "study_key", "created_at"])


def downgrade() -> None:
    op.drop_table("canaries")
    with op.batch_alter_table("best_configs") as batch:
        batch.drop_column("superseded_by")
    with op.batch_alter_table("workers") as batch:
        batch.drop_column("condition")
    with op.batch_alter_table("studies") as batch:
        batch.drop_column("errand")
