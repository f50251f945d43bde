"""Events, numbered by their study.

Revision ID: 0002
Revises: 0001
"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "events",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("study_id", sa.String(length=32), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("type", sa.String(length=32), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["study_id"], ["studies.id"], name=op.f("fk_events_study_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_events")),
        sa.UniqueConstraint("study_id", "number", name=op.f("uq_events_study_id_number")),
    )
    op.create_index("ix_events_created_at", "events", ["created_at"], unique=False)
    # Studies of before have no events: their stream begins with the next change.
    with op.batch_alter_table("studies") as table:
        table.add_column(sa.Column("last_event", sa.Integer(), nullable=False, server_default="0"))
    with op.batch_alter_table("studies") as table:
        table.alter_column("last_event", server_default=None)


def downgrade() -> None:
    with op.batch_alter_table("studies") as table:
        table.drop_column("last_event")
    op.drop_index("ix_events_created_at", table_name="events")
    op.drop_table("events")
