"""Who holds a worker's name: names are of their project, and of the line of keys that registered them; who may learn from a run.

Revision ID: 0016
Revises: 0015
"""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

_OF_A_PROJECT, _OF_NONE = sa.text("project_id IS NOT NULL"), sa.text("project_id IS NULL")


def upgrade() -> None:
    with op.batch_alter_table("api_keys") as batch:
        batch.add_column(sa.Column("holder_id", sa.String(length=32), nullable=True))
    op.execute("UPDATE api_keys SET holder_id = id")
    with op.batch_alter_table("api_keys") as batch:
        batch.alter_column("holder_id", existing_type=sa.String(length=32), nullable=False)
    op.create_index("ix_api_keys_holder_id", "api_keys", ["holder_id"])
    with op.batch_alter_table("workers") as batch:
        batch.add_column(sa.Column("holder_id", sa.String(length=32), nullable=True))
        batch.drop_constraint("uq_workers_name", type_="unique")
    op.create_index(
        "uq_workers_project_name",
        "workers",
        ["project_id", "name"],
        unique=True,
        sqlite_where=_OF_A_PROJECT,
        postgresql_where=_OF_A_PROJECT,
    )
    op.create_index(
        "uq_workers_shared_name", "workers", ["name"], unique=True, sqlite_where=_OF_NONE, postgresql_where=_OF_NONE
    )
    with op.batch_alter_table("runs") as batch:
        batch.add_column(sa.Column("measured_for", sa.String(length=32), nullable=True))
    op.execute(
        "UPDATE runs SET measured_for = (SELECT project_id FROM workers WHERE workers.id = runs.worker_id)"
    )


def downgrade() -> None:
    with op.batch_alter_table("runs") as batch:
        batch.drop_column("measured_for")
    op.drop_index("uq_workers_shared_name", "workers")
    op.drop_index("uq_workers_project_name", "workers")
    # Two projects may have used one name; before, there was one of each.
    op.execute(
        "UPDATE workers SET name = substr(name, 1, 160) || ' ' || id WHERE id NOT IN "
        "(SELECT min(id) FROM workers GROUP BY name)"
    )
    with op.batch_alter_table("workers") as batch:
        batch.create_unique_constraint("uq_workers_name", ["name"])
        batch.drop_column("holder_id")
    op.drop_index("ix_api_keys_holder_id", "api_keys")
    with op.batch_alter_table("api_keys") as batch:
        batch.drop_column("holder_id")
