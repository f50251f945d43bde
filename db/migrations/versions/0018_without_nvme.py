"""NVMe offload is not searched any more: what told of it goes.

Revision ID: 0018
Revises: 0017
"""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("studies") as batch:
        batch.drop_column("has_nvme")
    forget("studies", "spec", ("space", "allow_nvme"))
    forget("workers", "inventory", ("nvme_path",))


def downgrade() -> None:
    """What was forgotten had one value everywhere, which is also its default."""
    with op.batch_alter_table("studies") as batch:
        batch.add_column(sa.Column("has_nvme", sa.Boolean(), nullable=False, server_default=sa.false()))
    with op.batch_alter_table("studies") as batch:
        batch.alter_column("has_nvme", server_default=None)


def forget(table: str, column: str, path: tuple[str, ...]) -> None:
    """Take a field out of the stored values."""
    rows = sa.table(table, sa.column("id", sa.String), sa.column(column, sa.JSON))
    connection = op.get_bind()
    for row in connection.execute(sa.select(rows.c.id, rows.c[column])).all():
        value = inner = row[1]
        for name in path[:-1]:
            inner = inner.get(name, {})
        if path[-1] in inner:
            del inner[path[-1]]
            connection.execute(rows.update().where(rows.c.id == row.id).values({column: value}))
