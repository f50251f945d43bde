"""Configuration and report of the runs that rehearse a projected answer at the size of the study's target.

Revision ID: 0009_rehearsals
Revises: 0008_reason_codes
"""

import sqlalchemy as sa
from alembic import op

revision = "0009_rehearsals"
down_revision = "0008_reason_codes"
branch_labels = None
depends_on = None
# Older code does not know the purpose of such runs.
oldest_code = "0009_rehearsals"


def upgrade() -> None:
    op.add_column("runs", sa.Column("rehearsed_config", sa.JSON(none_as_null=True), nullable=True))
    op.add_column("runs", sa.Column("rehearsal", sa.JSON(none_as_null=True), nullable=True))


def downgrade() -> None:
    op.drop_column("runs", "rehearsal")
    op.drop_column("runs", "rehearsed_config")
