"""Studies wait for workers and can be deleted, workers are forgotten, retunes know what changed from what to what.

Revision ID: 0021
Revises: 0020
"""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None

MOMENT = sa.DateTime(timezone=True)
STALE = "stale"


def upgrade() -> None:
    add("studies", sa.Column("started_at", MOMENT), sa.Column("deleted_at", MOMENT))
    op.execute("UPDATE studies SET started_at = created_at")
    resolving("'waiting', 'running', 'paused'")
    add("workers", sa.Column("forgotten_at", MOMENT))
    add("retunes", sa.Column("changes", sa.JSON(), nullable=False, server_default="[]"))
    fill("changed_fields", "changes", lambda names: [field(name) for name in names])
    drop("retunes", "changed_fields")
    with op.batch_alter_table("retunes") as table:
        table.alter_column("changes", server_default=None)


def downgrade() -> None:
    add("retunes", sa.Column("changed_fields", sa.JSON(), nullable=False, server_default="[]"))
    fill("changes", "changed_fields", lambda changes: [change["field"] for change in changes])
    drop("retunes", "changes")
    with op.batch_alter_table("retunes") as table:
        table.alter_column("changed_fields", server_default=None)
    drop("workers", "forgotten_at")
    # It waits as studies of the release before do whose worker went away.
    op.execute("UPDATE studies SET state = 'running' WHERE state = 'waiting'")
    op.execute("UPDATE events SET type = 'study.resumed' WHERE type = 'study.started'")
    op.execute("UPDATE decisions SET action = 'rejected' WHERE action = 'withdrawn'")
    resolving("'running', 'paused'")
    edit("studies", "spec", lambda spec: {key: one for key, one in spec.items() if key != "wait_for_worker_s"})
    edit("webhooks", "events", lambda events: ["study.resumed" if one == "study.started" else one for one in events])
    drop("studies", "started_at", "deleted_at")


def add(table: str, *columns: sa.Column[Any]) -> None:
    with op.batch_alter_table(table) as changed:
        for column in columns:
            changed.add_column(column)


def drop(table: str, *names: str) -> None:
    with op.batch_alter_table(table) as changed:
        for name in names:
            changed.drop_column(name)


def resolving(states: str) -> None:
    """One open study of a case that somebody asked to resolve; which states are open."""
    op.drop_index("uq_studies_resolving", table_name="studies")
    is_open = sa.text(f"state IN ({states})")
    columns = ["project_id", "resolve_key"]
    op.create_index(
        "uq_studies_resolving", "studies", columns, unique=True, sqlite_where=is_open, postgresql_where=is_open
    )


def field(name: str) -> dict[str, Any]:
    """A change of which only the name was kept."""
    return {"field": name, "was": None, "now": None, "effect": STALE}


def fill(source: str, target: str, made: Any) -> None:
    rows = sa.table("retunes", sa.column("id", sa.String), sa.column(source, sa.JSON), sa.column(target, sa.JSON))
    connection = op.get_bind()
    for row in connection.execute(sa.select(rows.c.id, rows.c[source])).all():
        connection.execute(rows.update().where(rows.c.id == row[0]).values({target: made(row[1] or [])}))


def edit(table: str, column: str, changed: Any) -> None:
    rows = sa.table(table, sa.column("id", sa.String), sa.column(column, sa.JSON))
    connection = op.get_bind()
    for row in connection.execute(sa.select(rows.c.id, rows.c[column])).all():
        value = changed(row[1])
        if value != row[1]:
            connection.execute(rows.update().where(rows.c.id == row[0]).values({column: value}))
