"""First tables: studies, trials, runs, attempts, rejections, workers, fingerprints.

Column types are spelt out, so that a later change of db.tables.types does not rewrite history.

Revision ID: 0001
Revises:
"""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "fingerprints",
        sa.Column("key", sa.String(length=32), nullable=False),
        sa.Column("value", sa.JSON(), nullable=False),
        sa.Column("first_seen_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_fingerprints")),
    )
    op.create_table(
        "studies",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("phase", sa.String(length=16), nullable=False),
        sa.Column("spec", sa.JSON(), nullable=False),
        sa.Column("cluster", sa.JSON(), nullable=False),
        sa.Column("baseline", sa.JSON(), nullable=True),
        sa.Column("notes", sa.JSON(), nullable=False),
        sa.Column("has_nvme", sa.Boolean(), nullable=False),
        sa.Column("profile", sa.JSON(), nullable=True),
        sa.Column("fingerprint_key", sa.String(length=32), nullable=True),
        sa.Column("gpu_seconds", sa.Double(), nullable=False),
        sa.Column("match_round", sa.Integer(), nullable=False),
        sa.Column("match", sa.JSON(), nullable=True),
        sa.Column("best_so_far", sa.JSON(), nullable=True),
        sa.Column("result", sa.JSON(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["fingerprint_key"], ["fingerprints.key"], name=op.f("fk_studies_fingerprint_key")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_studies")),
    )
    op.create_index("ix_studies_state", "studies", ["state", "created_at"], unique=False)

    op.create_table(
        "workers",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("session", sa.String(length=64), nullable=False),
        sa.Column("inventory", sa.JSON(), nullable=False),
        sa.Column("fingerprint_key", sa.String(length=32), nullable=False),
        sa.Column("registered_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("seen_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["fingerprint_key"], ["fingerprints.key"], name=op.f("fk_workers_fingerprint_key")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_workers")),
        sa.UniqueConstraint("name", name=op.f("uq_workers_name")),
        sa.UniqueConstraint("session", name=op.f("uq_workers_session")),
    )
    op.create_table(
        "rejections",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("study_id", sa.String(length=32), nullable=False),
        sa.Column("config_key", sa.String(length=32), nullable=False),
        sa.Column("value", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["study_id"], ["studies.id"], name=op.f("fk_rejections_study_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_rejections")),
        sa.UniqueConstraint("study_id", "config_key", name=op.f("uq_rejections_study_id_config_key")),
    )
    op.create_table(
        "trials",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("study_id", sa.String(length=32), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("origin", sa.String(length=16), nullable=False),
        sa.Column("config", sa.JSON(), nullable=False),
        sa.Column("config_key", sa.String(length=32), nullable=False),
        sa.Column("failure", sa.JSON(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["study_id"], ["studies.id"], name=op.f("fk_trials_study_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_trials")),
        sa.UniqueConstraint("study_id", "config_key", name=op.f("uq_trials_study_id_config_key")),
        sa.UniqueConstraint("study_id", "number", name=op.f("uq_trials_study_id_number")),
    )
    op.create_table(
        "runs",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("study_id", sa.String(length=32), nullable=False),
        sa.Column("trial_id", sa.Integer(), nullable=True),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("purpose", sa.String(length=16), nullable=False),
        sa.Column("match_round", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("worker_id", sa.String(length=32), nullable=True),
        sa.Column("worker_session", sa.String(length=64), nullable=True),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("lease_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("fingerprint_key", sa.String(length=32), nullable=True),
        sa.Column("measurement", sa.JSON(), nullable=True),
        sa.Column("failure", sa.JSON(), nullable=True),
        sa.Column("progress", sa.JSON(), nullable=True),
        sa.Column("log_tail", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["fingerprint_key"], ["fingerprints.key"], name=op.f("fk_runs_fingerprint_key")),
        sa.ForeignKeyConstraint(["study_id"], ["studies.id"], name=op.f("fk_runs_study_id"), ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["trial_id"], ["trials.id"], name=op.f("fk_runs_trial_id"), ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["worker_id"], ["workers.id"], name=op.f("fk_runs_worker_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_runs")),
        sa.UniqueConstraint("study_id", "position", name=op.f("uq_runs_study_id_position")),
    )
    op.create_index("ix_runs_lease", "runs", ["state", "lease_until"], unique=False)
    op.create_index(op.f("ix_runs_trial_id"), "runs", ["trial_id"], unique=False)
    op.create_index(
        "uq_runs_session_running",
        "runs",
        ["worker_session"],
        unique=True,
        sqlite_where=sa.text("state = 'running'"),
        postgresql_where=sa.text("state = 'running'"),
    )

    op.create_table(
        "attempts",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("run_id", sa.String(length=32), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("worker_id", sa.String(length=32), nullable=False),
        sa.Column("worker_session", sa.String(length=64), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("end", sa.String(length=16), nullable=True),
        sa.Column("failure", sa.JSON(), nullable=True),
        sa.Column("gpu_seconds", sa.Double(), nullable=True),
        sa.Column("report_key", sa.String(length=32), nullable=True),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_attempts_run_id"), ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["worker_id"], ["workers.id"], name=op.f("fk_attempts_worker_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_attempts")),
        sa.UniqueConstraint("run_id", "attempt", name=op.f("uq_attempts_run_id_attempt")),
    )


def downgrade() -> None:
    op.drop_table("attempts")
    op.drop_index("uq_runs_session_running", table_name="runs")
    op.drop_index(op.f("ix_runs_trial_id"), table_name="runs")
    op.drop_index("ix_runs_lease", table_name="runs")

    op.drop_table("runs")
    op.drop_table("trials")
    op.drop_table("rejections")
    op.drop_table("workers")
    op.drop_index("ix_studies_state", table_name="studies")

    op.drop_table("studies")
    op.drop_table("fingerprints")
