"""Id of the API key that made a decision: names of keys are not unique.

Revision ID: 0004_decision_keys
Revises: 0003_schema_compatibility
"""

import sqlalchemy as sa
from alembic import op

revision = "0004_decision_keys"
down_revision = "0003_schema_compatibility"
branch_labels = None
depends_on = None
# A nullable column: code that does not know it goes on writing decisions.
oldest_code = "0003_schema_compatibility"


def upgrade() -> None:
    op.add_column("decisions", sa.Column("key_id", sa.String(32), nullable=True))


def downgrade() -> None:
    op.drop_column("decisions", "key_id")
