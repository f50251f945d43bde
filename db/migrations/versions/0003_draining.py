"""Workers that get no more work.

Revision ID: 0003
Revises: 0002
"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("workers") as table:
        table.add_column(sa.Column("is_draining", sa.Boolean(), nullable=False, server_default=sa.false()))
    with op.batch_alter_table("workers") as table:
        table.alter_column("is_draining", server_default=None)


def downgrade() -> None:
    with op.batch_alter_table("workers") as table:
        table.drop_column("is_draining")
