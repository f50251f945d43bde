"""Column with the samples that the recorded first steps of a study with short steps share.

Revision ID: 0005_short_steps
Revises: 0004_decision_keys
"""

import sqlalchemy as sa
from alembic import op

revision = "0005_short_steps"
down_revision = "0004_decision_keys"
branch_labels = None
depends_on = None
# Older code does not know the column, and would send whole steps within a study of short ones.
oldest_code = "0005_short_steps"


def upgrade() -> None:
    op.add_column("studies", sa.Column("parity_samples", sa.Integer(), nullable=True))


def downgrade() -> None:
    op.drop_column("studies", "parity_samples")
