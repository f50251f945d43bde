"""Recipe and configuration of the runs that compare recipes.

Revision ID: 0006_recipes
Revises: 0005_short_steps
"""

import sqlalchemy as sa
from alembic import op

revision = "0006_recipes"
down_revision = "0005_short_steps"
branch_labels = None
depends_on = None
# Older code does not know the purpose of such runs, nor the fields of studies that ask for them.
oldest_code = "0006_recipes"


def upgrade() -> None:
    op.add_column("runs", sa.Column("recipe", sa.JSON(none_as_null=True), nullable=True))


def downgrade() -> None:
    op.drop_column("runs", "recipe")
