"""Blocks of promotion runs.

Revision ID: 0005
Revises: 0004
"""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_FORGET = """UPDATE studies SET "match" = NULL WHERE state IN ('running', 'paused')"""


def upgrade() -> None:
    op.add_column("runs", sa.Column("block", sa.Integer(), nullable=True))
    # What is stored of a confirmation under way is of another form; the study picks its candidates anew.
    op.execute(sa.text(_FORGET))


def downgrade() -> None:
    op.execute(sa.text(_FORGET))
    op.drop_column("runs", "block")
