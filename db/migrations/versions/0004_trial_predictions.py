"""What was predicted for a trial, beside what it measured.

Revision ID: 0004
Revises: 0003
"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("trials") as table:
        table.add_column(sa.Column("prediction", sa.JSON(), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("trials") as table:
        table.drop_column("prediction")
