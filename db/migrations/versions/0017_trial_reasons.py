"""Why the guided sampler chose a trial.

Revision ID: 0017
Revises: 0016
"""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("trials") as table:
        table.add_column(sa.Column("reason", sa.JSON(), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("trials") as table:
        table.drop_column("reason")
