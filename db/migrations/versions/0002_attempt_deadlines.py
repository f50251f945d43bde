"""Deadline of each attempt and number of times that its lease was sent again; workers that the service set aside.

Revision ID: 0002_attempt_deadlines
Revises: 0001_initial
"""

import sqlalchemy as sa
from alembic import op

revision = "0002_attempt_deadlines"
down_revision = "0001_initial"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # No default is dropped later and no column is required: a service of revision 0001 may go on writing rows.
    op.add_column("runs", sa.Column("deadline_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column("runs", sa.Column("extended_at_progress", sa.JSON(none_as_null=True), nullable=True))
    op.add_column("runs", sa.Column("lease_repeats", sa.Integer(), nullable=False, server_default="0"))
    op.add_column("workers", sa.Column("set_aside", sa.Text(), nullable=True))


def downgrade() -> None:
    op.drop_column("workers", "set_aside")
    op.drop_column("runs", "lease_repeats")
    op.drop_column("runs", "extended_at_progress")
    op.drop_column("runs", "deadline_at")
