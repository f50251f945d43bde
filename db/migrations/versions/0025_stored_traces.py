"""Raw traces of runs under the profiler.

Revision ID: 0025
Revises: 0024
"""

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "traces",
        sa.Column("run_id", sa.String(32), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("project_id", sa.String(64), nullable=False),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_traces_run_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "rank", name="pk_traces"),
    )
    op.create_index("ix_traces_project_id", "traces", ["project_id", "created_at"])


def downgrade() -> None:
    op.drop_table("traces")
