"""Table with the oldest code that can use the schema, so that an older replica stays ready during an upgrade.

Revision ID: 0003_schema_compatibility
Revises: 0002_attempt_deadlines
"""

import sqlalchemy as sa
from alembic import op

revision = "0003_schema_compatibility"
down_revision = "0002_attempt_deadlines"
branch_labels = None
depends_on = None
# Older code does not read the table, and accepts its own revision only.
oldest_code = "0003_schema_compatibility"


def upgrade() -> None:
    op.create_table(
        "schema_compatibility",
        sa.Column("revision", sa.String(64), nullable=False),
        sa.Column("oldest_code", sa.String(64), nullable=False),
        sa.PrimaryKeyConstraint("revision", name=op.f("pk_schema_compatibility")),
    )


def downgrade() -> None:
    op.drop_table("schema_compatibility")
