"""Columns with the seconds that a run had waited for a quiet machine before an attempt, and that the attempt may wait.

Revision ID: 0010_waits_of_attempts
Revises: 0009_rehearsals
"""

import sqlalchemy as sa
from alembic import op

revision = "0010_waits_of_attempts"
down_revision = "0009_rehearsals"
branch_labels = None
depends_on = None
# The columns only add, but this code also stores a purpose of runs (sustained) and an end of attempts (preempted) that
# older code cannot read.
oldest_code = "0010_waits_of_attempts"


def upgrade() -> None:
    op.add_column("attempts", sa.Column("waited_before_s", sa.Double(), nullable=True))
    op.add_column("attempts", sa.Column("may_wait_s", sa.Double(), nullable=True))


def downgrade() -> None:
    op.drop_column("attempts", "may_wait_s")
    op.drop_column("attempts", "waited_before_s")
