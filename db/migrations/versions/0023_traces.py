"""Where the steps of a trial went, of a run under the profiler.

Revision ID: 0023
Revises: 0022
"""

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None

OPEN = sa.text("purpose = 'trace' AND state IN ('waiting', 'running')")


def upgrade() -> None:
    with op.batch_alter_table("runs") as table:
        table.add_column(sa.Column("diagnosis", sa.LargeBinary(), nullable=True))
    op.create_index("ix_runs_open_traces", "runs", ["study_id"], sqlite_where=OPEN, postgresql_where=OPEN)


def downgrade() -> None:
    op.drop_index("ix_runs_open_traces", "runs")
    rows = sa.table("studies", sa.column("id", sa.String), sa.column("spec", sa.JSON))
    connection = op.get_bind()
    for study, spec in connection.execute(sa.select(rows.c.id, rows.c.spec)).all():
        if spec.get("budget", {}).pop("profile", None) is not None:
            connection.execute(rows.update().where(rows.c.id == study).values(spec=spec))
    op.execute("DELETE FROM attempts WHERE run_id IN (SELECT id FROM runs WHERE purpose = 'trace')")
    op.execute("DELETE FROM runs WHERE purpose = 'trace'")
    with op.batch_alter_table("runs") as table:
        table.drop_column("diagnosis")
