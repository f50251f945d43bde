"""What decides which studies are a worker's own stands apart from the rest that it says of itself.

Revision ID: 0022
Revises: 0021
"""

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None

SHOWN = frozenset({"causal_lm_types", "details"})
"""Of the inventory, what nobody decides by."""


def upgrade() -> None:
    with op.batch_alter_table("workers") as table:
        table.add_column(sa.Column("offer", sa.JSON(), nullable=False, server_default="{}"))
    rows = sa.table("workers", sa.column("id", sa.String), sa.column("inventory", sa.JSON), sa.column("offer", sa.JSON))
    connection = op.get_bind()
    for worker, inventory in connection.execute(sa.select(rows.c.id, rows.c.inventory)).all():
        offer = {name: value for name, value in inventory.items() if name not in SHOWN}
        connection.execute(rows.update().where(rows.c.id == worker).values(offer=offer))
    with op.batch_alter_table("workers") as table:
        table.alter_column("offer", server_default=None)


def downgrade() -> None:
    with op.batch_alter_table("workers") as table:
        table.drop_column("offer")
