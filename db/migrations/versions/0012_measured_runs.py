"""An index for what was measured on a fingerprint, the newest first.

Revision ID: 0012
Revises: 0011
"""

from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index("ix_runs_measured", "runs", ["fingerprint_key", "purpose", "finished_at", "id"])


def downgrade() -> None:
    op.drop_index("ix_runs_measured", "runs")
