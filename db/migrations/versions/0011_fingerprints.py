"""The history of workers' fingerprints, and since when a best configuration is stale.

Revision ID: 0011
Revises: 0010
"""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

_PRESENT = sa.text("until IS NULL")


def upgrade() -> None:
    op.create_table(
        "fingerprint_eras",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("worker_id", sa.String(length=32), nullable=False),
        sa.Column("fingerprint_key", sa.String(length=32), nullable=False),
        sa.Column("predecessor_key", sa.String(length=32), nullable=True),
        sa.Column("since", sa.DateTime(timezone=True), nullable=False),
        sa.Column("until", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["worker_id"], ["workers.id"], name=op.f("fk_fingerprint_eras_worker_id")),
        sa.ForeignKeyConstraint(
            ["fingerprint_key"], ["fingerprints.key"], name=op.f("fk_fingerprint_eras_fingerprint_key")
        ),
        sa.ForeignKeyConstraint(
            ["predecessor_key"], ["fingerprints.key"], name=op.f("fk_fingerprint_eras_predecessor_key")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_fingerprint_eras")),
    )
    op.create_index(
        "uq_fingerprint_eras_present",
        "fingerprint_eras",
        ["worker_id"],
        unique=True,
        sqlite_where=_PRESENT,
        postgresql_where=_PRESENT,
    )
    op.create_index("ix_fingerprint_eras_fingerprint", "fingerprint_eras", ["fingerprint_key", "since"])
    op.execute(
        "INSERT INTO fingerprint_eras (worker_id, fingerprint_key, since) "
        "SELECT id, fingerprint_key, registered_at FROM workers"
    )
    op.create_index("ix_fingerprints_first_seen_at", "fingerprints", ["first_seen_at", "key"])
    with op.batch_alter_table("best_configs") as table:
        table.add_column(sa.Column("fingerprint_key", sa.String(length=32), nullable=True))
        table.add_column(sa.Column("stale_since", sa.DateTime(timezone=True), nullable=True))
        table.add_column(sa.Column("stale_told_at", sa.DateTime(timezone=True), nullable=True))
        table.add_column(sa.Column("stale_told_for", sa.JSON(), nullable=False, server_default="[]"))
        table.create_foreign_key(
            op.f("fk_best_configs_fingerprint_key"), "fingerprints", ["fingerprint_key"], ["key"]
        )
        table.create_index("ix_best_fingerprint", ["fingerprint_key"])
    op.execute(
        "UPDATE best_configs SET fingerprint_key = (SELECT studies.fingerprint_key FROM recommendations "
        "JOIN studies ON studies.id = recommendations.study_id WHERE recommendations.id = best_configs.serving_id)"
    )


def downgrade() -> None:
    with op.batch_alter_table("best_configs") as table:
        table.drop_index("ix_best_fingerprint")
        table.drop_constraint(op.f("fk_best_configs_fingerprint_key"), type_="foreignkey")
        table.drop_column("stale_told_for")
        table.drop_column("stale_told_at")
        table.drop_column("stale_since")
        table.drop_column("fingerprint_key")
    op.drop_index("ix_fingerprints_first_seen_at", "fingerprints")
    op.drop_table("fingerprint_eras")
