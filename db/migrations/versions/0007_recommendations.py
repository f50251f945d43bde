"""Recommendations, what is served, and the decisions between them.

Revision ID: 0007
Revises: 0006
"""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "recommendations",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("project_id", sa.String(length=32), nullable=False),
        sa.Column("study_key", sa.String(length=32), nullable=False),
        sa.Column("study_id", sa.String(length=32), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("answer", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_recommendations_project_id")),
        sa.ForeignKeyConstraint(["study_id"], ["studies.id"], name=op.f("fk_recommendations_study_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_recommendations")),
    )
    op.create_index(op.f("ix_recommendations_study_id"), "recommendations", ["study_id"])
    op.create_index("ix_recommendations_list", "recommendations", ["project_id", "study_key", "created_at", "id"])
    op.create_table(
        "best_configs",
        sa.Column("project_id", sa.String(length=32), nullable=False),
        sa.Column("study_key", sa.String(length=32), nullable=False),
        sa.Column("shape_key", sa.String(length=32), nullable=False),
        sa.Column("model_key", sa.String(length=32), nullable=False),
        sa.Column("model_type", sa.String(length=100), nullable=False),
        sa.Column("device", sa.String(length=8), nullable=False),
        sa.Column("serving_id", sa.String(length=32), nullable=True),
        sa.Column("is_pinned", sa.Boolean(), nullable=False),
        sa.Column("freshness", sa.String(length=8), nullable=False),
        sa.Column("changed_fields", sa.JSON(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_best_configs_project_id")),
        sa.ForeignKeyConstraint(["serving_id"], ["recommendations.id"], name=op.f("fk_best_configs_serving_id")),
        sa.PrimaryKeyConstraint("project_id", "study_key", name=op.f("pk_best_configs")),
    )
    op.create_index("ix_best_shape", "best_configs", ["project_id", "shape_key", "updated_at"])
    op.create_index("ix_best_model", "best_configs", ["project_id", "model_key", "updated_at"])
    op.create_index("ix_best_type", "best_configs", ["project_id", "model_type", "device", "updated_at"])
    op.create_table(
        "decisions",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("project_id", sa.String(length=32), nullable=False),
        sa.Column("study_key", sa.String(length=32), nullable=False),
        sa.Column("recommendation_id", sa.String(length=32), nullable=False),
        sa.Column("action", sa.String(length=16), nullable=False),
        sa.Column("by", sa.String(length=100), nullable=False),
        sa.Column("note", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_decisions_project_id")),
        sa.ForeignKeyConstraint(
            ["recommendation_id"], ["recommendations.id"], name=op.f("fk_decisions_recommendation_id")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_decisions")),
    )
    op.create_index("ix_decisions_subject", "decisions", ["project_id", "study_key", "id"])
    with op.batch_alter_table("studies") as batch:
        batch.add_column(sa.Column("resolve_key", sa.String(length=32), nullable=True))
        batch.create_index(
            "uq_studies_resolving",
            ["project_id", "resolve_key"],
            unique=True,
            sqlite_where=sa.text("state IN ('running', 'paused')"),
            postgresql_where=sa.text("state IN ('running', 'paused')"),
        )


def downgrade() -> None:
    with op.batch_alter_table("studies") as batch:
        batch.drop_index("uq_studies_resolving")
        batch.drop_column("resolve_key")
    op.drop_table("decisions")
    op.drop_table("best_configs")
    op.drop_table("recommendations")
