"""Several workers share a host: which one, who waits for it, and where a run was.

Revision ID: 0024
Revises: 0023
"""

from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("workers") as table:
        table.add_column(sa.Column("host_id", sa.String(128), nullable=True))
        table.add_column(sa.Column("waits", sa.JSON(), nullable=True))
    op.create_index("ix_workers_host_id", "workers", ["host_id"])
    with op.batch_alter_table("runs") as table:
        table.add_column(sa.Column("host_id", sa.String(128), nullable=True))


def downgrade() -> None:
    edit("workers", "id", ("offer", "inventory"), without_share)
    edit("runs", "id", ("measurement", "failure"), without_neighbours)
    edit("trials", "id", ("failure",), without_neighbours)
    edit("attempts", "id", ("failure",), without_neighbours)
    with op.batch_alter_table("runs") as table:
        table.drop_column("host_id")
    op.drop_index("ix_workers_host_id", "workers")
    with op.batch_alter_table("workers") as table:
        table.drop_column("waits")
        table.drop_column("host_id")


def without_share(said: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in said.items() if name != "share"}


def without_neighbours(ended: dict[str, Any]) -> dict[str, Any]:
    """An end whose conditions the release before reads."""
    seen = ended.get("conditions") or {}
    if "neighbours" not in seen:
        return ended
    return ended | {"conditions": {name: value for name, value in seen.items() if name != "neighbours"}}


def edit(table: str, key: str, columns: tuple[str, ...], changed: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    rows = sa.table(table, sa.column(key), *(sa.column(name, sa.JSON) for name in columns))
    connection = op.get_bind()
    for row in connection.execute(sa.select(rows)).all():
        stored = {name: value for name, value in zip(columns, row[1:], strict=True) if value is not None}
        new = {name: changed(value) for name, value in stored.items() if changed(value) != value}
        if new:
            connection.execute(rows.update().where(rows.c[key] == row[0]).values(new))
