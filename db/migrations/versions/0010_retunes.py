"""Schedules, their ticks, retunes; uses of recommendations; who a study is for.

Revision ID: 0010
Revises: 0009
"""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

_ACTIVE = sa.text("next_tick_at IS NOT NULL")
_UNFINISHED = sa.text("state IN ('queued', 'running')")


def upgrade() -> None:
    _schedules()
    _retunes()
    with op.batch_alter_table("best_configs") as batch:
        batch.add_column(sa.Column("uses", sa.Integer(), nullable=False, server_default="0"))
        batch.add_column(sa.Column("planned_gpu_seconds", sa.Double(), nullable=True))
    with op.batch_alter_table("projects") as batch:
        batch.add_column(sa.Column("retuning", sa.JSON(), nullable=True))
    with op.batch_alter_table("studies") as batch:
        batch.add_column(sa.Column("purpose", sa.String(length=8), nullable=False, server_default="user"))


def _schedules() -> None:
    op.create_table(
        "schedules",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("project_id", sa.String(length=32), nullable=False),
        sa.Column("spec", sa.JSON(), nullable=False),
        sa.Column("trigger", sa.String(length=16), nullable=False),
        sa.Column("is_paused", sa.Boolean(), nullable=False),
        sa.Column("next_tick_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_schedules_project_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_schedules")),
    )
    op.create_index(
        "ix_schedules_due", "schedules", ["next_tick_at"], sqlite_where=_ACTIVE, postgresql_where=_ACTIVE
    )
    op.create_index("ix_schedules_project", "schedules", ["project_id", "created_at", "id"])
    op.create_table(
        "schedule_ticks",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("schedule_id", sa.String(length=32), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("kind", sa.String(length=8), nullable=False),
        sa.Column("state", sa.String(length=8), nullable=False),
        sa.Column("stands_for", sa.Integer(), nullable=False),
        sa.Column("cases", sa.Integer(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["schedule_id"], ["schedules.id"], name=op.f("fk_schedule_ticks_schedule_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_schedule_ticks")),
        sa.UniqueConstraint("schedule_id", "kind", "at", name=op.f("uq_schedule_ticks_schedule_id_kind_at")),
    )
    op.create_index("ix_schedule_ticks_state", "schedule_ticks", ["schedule_id", "state", "at"])


def _retunes() -> None:
    op.create_table(
        "retunes",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("project_id", sa.String(length=32), nullable=False),
        sa.Column("study_key", sa.String(length=32), nullable=False),
        sa.Column("cause", sa.String(length=16), nullable=False),
        sa.Column("changed_fields", sa.JSON(), nullable=False),
        sa.Column("schedule_id", sa.String(length=32), nullable=True),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("outcome", sa.String(length=16), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("challenge_study_id", sa.String(length=32), nullable=True),
        sa.Column("search_study_id", sa.String(length=32), nullable=True),
        sa.Column("gpu_seconds", sa.Double(), nullable=False),
        sa.Column("planned_gpu_seconds", sa.Double(), nullable=True),
        sa.Column("expected_saving_gpu_seconds", sa.Double(), nullable=True),
        sa.Column("gain", sa.JSON(), nullable=True),
        sa.Column("not_before", sa.DateTime(timezone=True), nullable=False),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("claimed_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_retunes_project_id")),
        sa.ForeignKeyConstraint(
            ["schedule_id"], ["schedules.id"], name=op.f("fk_retunes_schedule_id"), ondelete="SET NULL"
        ),
        sa.ForeignKeyConstraint(["challenge_study_id"], ["studies.id"], name=op.f("fk_retunes_challenge_study_id")),
        sa.ForeignKeyConstraint(["search_study_id"], ["studies.id"], name=op.f("fk_retunes_search_study_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_retunes")),
    )
    op.create_index(
        "uq_retunes_unfinished",
        "retunes",
        ["project_id", "study_key"],
        unique=True,
        sqlite_where=_UNFINISHED,
        postgresql_where=_UNFINISHED,
    )
    op.create_index("ix_retunes_due", "retunes", ["state", "not_before"])
    op.create_index("ix_retunes_project", "retunes", ["project_id", "created_at", "id"])
    op.create_index("ix_retunes_schedule", "retunes", ["schedule_id", "created_at"])


def downgrade() -> None:
    with op.batch_alter_table("studies") as batch:
        batch.drop_column("purpose")
    with op.batch_alter_table("projects") as batch:
        batch.drop_column("retuning")
    with op.batch_alter_table("best_configs") as batch:
        batch.drop_column("planned_gpu_seconds")
        batch.drop_column("uses")
    op.drop_table("retunes")
    op.drop_table("schedule_ticks")
    op.drop_table("schedules")
