"""All tables of the first release, and the project `default`.

Column types are written out, so that a later change of db.tables.types does not change this revision.

Revision ID: 0001_initial
Revises:
"""

import sqlalchemy as sa
from alembic import op

# Not "0001": databases of the unreleased revisions 0001 to 0025 must not look like this one (db.revisions).
revision = "0001_initial"
down_revision = None
branch_labels = None
depends_on = None

_SCHEDULED = sa.text("next_tick_at IS NOT NULL")
_OPEN_STUDY = sa.text("state IN ('waiting', 'running', 'paused')")
_OF_A_PROJECT = sa.text("project_id IS NOT NULL")
_OF_NO_PROJECT = sa.text("project_id IS NULL")
_PRESENT = sa.text("until IS NULL")
_OPEN_RETUNE = sa.text("state IN ('queued', 'running')")
_OPEN_TRACE = sa.text("purpose = 'trace' AND state IN ('waiting', 'running')")
_RUNNING = sa.text("state = 'running'")


def upgrade() -> None:
    op.create_table(
        "fingerprints",
        sa.Column("key", sa.String(32), nullable=False),
        sa.Column("value", sa.JSON(), nullable=False),
        sa.Column("first_seen_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_fingerprints"),
    )
    op.create_index("ix_fingerprints_first_seen_at", "fingerprints", ["first_seen_at", "key"])
    op.create_table(
        "idempotent_requests",
        sa.Column("scope", sa.String(40), nullable=False),
        sa.Column("key", sa.String(255), nullable=False),
        sa.Column("request_sha256", sa.String(64), nullable=False),
        sa.Column("status", sa.Integer(), nullable=True),
        sa.Column("answer", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("scope", "key", name="pk_idempotent_requests"),
    )
    op.create_index("ix_idempotent_requests_created_at", "idempotent_requests", ["created_at"])
    op.create_table(
        "projects",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("quotas", sa.JSON(), nullable=False),
        sa.Column("requires_approval", sa.Boolean(), nullable=False),
        sa.Column("retuning", sa.JSON(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_projects"),
    )
    op.execute(
        "INSERT INTO projects (id, quotas, requires_approval, created_at) "
        "VALUES ('default', '{}', false, CURRENT_TIMESTAMP)"
    )
    op.create_table(
        "api_keys",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("prefix", sa.String(32), nullable=False),
        sa.Column("secret_sha256", sa.String(64), nullable=False),
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("holder_id", sa.String(32), nullable=False),
        sa.Column("project_id", sa.String(32), nullable=True),
        sa.Column("scopes", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("last_used_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name="fk_api_keys_project_id"),
        sa.PrimaryKeyConstraint("id", name="pk_api_keys"),
        sa.UniqueConstraint("secret_sha256", name="uq_api_keys_secret_sha256"),
    )
    op.create_index("ix_api_keys_holder_id", "api_keys", ["holder_id"])
    op.create_index("ix_api_keys_project_id", "api_keys", ["project_id"])
    op.create_table(
        "schedules",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("project_id", sa.String(32), nullable=False),
        sa.Column("spec", sa.JSON(), nullable=False),
        sa.Column("trigger", sa.String(16), nullable=False),
        sa.Column("is_paused", sa.Boolean(), nullable=False),
        sa.Column("next_tick_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name="fk_schedules_project_id"),
        sa.PrimaryKeyConstraint("id", name="pk_schedules"),
    )
    op.create_index(
        "ix_schedules_due", "schedules", ["next_tick_at"], sqlite_where=_SCHEDULED, postgresql_where=_SCHEDULED
    )
    op.create_index("ix_schedules_project", "schedules", ["project_id", "created_at", "id"])
    op.create_table(
        "studies",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("project_id", sa.String(32), nullable=False, server_default="default"),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("phase", sa.String(16), nullable=False),
        sa.Column("spec", sa.JSON(), nullable=False),
        sa.Column("cluster", sa.JSON(), nullable=False),
        sa.Column("baseline", sa.JSON(), nullable=True),
        sa.Column("notes", sa.JSON(), nullable=False),
        sa.Column("model_summary", sa.JSON(), nullable=True),
        sa.Column("fingerprint_key", sa.String(32), nullable=True),
        sa.Column("gpu_seconds", sa.Double(), nullable=False),
        sa.Column("comparison_round", sa.Integer(), nullable=False),
        sa.Column("final_comparison", sa.JSON(), nullable=True),
        sa.Column("best_so_far", sa.JSON(), nullable=True),
        sa.Column("result", sa.JSON(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("resolve_key", sa.String(32), nullable=True),
        sa.Column("purpose", sa.String(8), nullable=False, server_default="user"),
        sa.Column("system_study", sa.JSON(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("deleted_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("last_event", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["fingerprint_key"], ["fingerprints.key"], name="fk_studies_fingerprint_key"),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name="fk_studies_project_id"),
        sa.PrimaryKeyConstraint("id", name="pk_studies"),
    )
    op.create_index("ix_studies_project", "studies", ["project_id", "created_at", "id"])
    op.create_index("ix_studies_state", "studies", ["state", "created_at"])
    op.create_index(
        "uq_studies_resolving",
        "studies",
        ["project_id", "resolve_key"],
        unique=True,
        sqlite_where=_OPEN_STUDY,
        postgresql_where=_OPEN_STUDY,
    )
    op.create_table(
        "workers",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("holder_id", sa.String(32), nullable=True),
        sa.Column("session", sa.String(64), nullable=False),
        sa.Column("offer", sa.JSON(), nullable=False),
        sa.Column("inventory", sa.JSON(), nullable=False),
        sa.Column("fingerprint_key", sa.String(32), nullable=False),
        sa.Column("project_id", sa.String(32), nullable=True),
        sa.Column("registered_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("seen_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("is_draining", sa.Boolean(), nullable=False),
        sa.Column("condition", sa.Text(), nullable=True),
        sa.Column("forgotten_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("host_id", sa.String(128), nullable=True),
        sa.Column("host_wait", sa.JSON(), nullable=True),
        sa.ForeignKeyConstraint(["fingerprint_key"], ["fingerprints.key"], name="fk_workers_fingerprint_key"),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name="fk_workers_project_id"),
        sa.PrimaryKeyConstraint("id", name="pk_workers"),
        sa.UniqueConstraint("session", name="uq_workers_session"),
    )
    op.create_index("ix_workers_host_id", "workers", ["host_id"])
    op.create_index(
        "uq_workers_project_name",
        "workers",
        ["project_id", "name"],
        unique=True,
        sqlite_where=_OF_A_PROJECT,
        postgresql_where=_OF_A_PROJECT,
    )
    op.create_index(
        "uq_workers_shared_name",
        "workers",
        ["name"],
        unique=True,
        sqlite_where=_OF_NO_PROJECT,
        postgresql_where=_OF_NO_PROJECT,
    )
    op.create_table(
        "events",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("study_id", sa.String(32), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("type", sa.String(32), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["study_id"], ["studies.id"], name="fk_events_study_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_events"),
        sa.UniqueConstraint("study_id", "number", name="uq_events_study_id_number"),
    )
    op.create_index("ix_events_created_at", "events", ["created_at"])
    op.create_table(
        "fingerprint_periods",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("worker_id", sa.String(32), nullable=False),
        sa.Column("fingerprint_key", sa.String(32), nullable=False),
        sa.Column("predecessor_key", sa.String(32), nullable=True),
        sa.Column("since", sa.DateTime(timezone=True), nullable=False),
        sa.Column("until", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["fingerprint_key"], ["fingerprints.key"], name="fk_fingerprint_periods_fingerprint_key"
        ),
        sa.ForeignKeyConstraint(
            ["predecessor_key"], ["fingerprints.key"], name="fk_fingerprint_periods_predecessor_key"
        ),
        sa.ForeignKeyConstraint(["worker_id"], ["workers.id"], name="fk_fingerprint_periods_worker_id"),
        sa.PrimaryKeyConstraint("id", name="pk_fingerprint_periods"),
    )
    op.create_index("ix_fingerprint_periods_fingerprint", "fingerprint_periods", ["fingerprint_key", "since"])
    op.create_index(
        "uq_fingerprint_periods_present",
        "fingerprint_periods",
        ["worker_id"],
        unique=True,
        sqlite_where=_PRESENT,
        postgresql_where=_PRESENT,
    )
    op.create_table(
        "page_sessions",
        sa.Column("token_sha256", sa.String(64), nullable=False),
        sa.Column("key_id", sa.String(32), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["key_id"], ["api_keys.id"], name="fk_page_sessions_key_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("token_sha256", name="pk_page_sessions"),
    )
    op.create_index("ix_page_sessions_expires_at", "page_sessions", ["expires_at"])
    op.create_index("ix_page_sessions_key_id", "page_sessions", ["key_id"])
    op.create_table(
        "recommendations",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("project_id", sa.String(32), nullable=False),
        sa.Column("target_key", sa.String(32), nullable=False),
        sa.Column("study_id", sa.String(32), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("answer", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name="fk_recommendations_project_id"),
        sa.ForeignKeyConstraint(["study_id"], ["studies.id"], name="fk_recommendations_study_id"),
        sa.PrimaryKeyConstraint("id", name="pk_recommendations"),
    )
    op.create_index("ix_recommendations_list", "recommendations", ["project_id", "target_key", "created_at", "id"])
    op.create_index("ix_recommendations_study_id", "recommendations", ["study_id"])
    op.create_table(
        "rejections",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("study_id", sa.String(32), nullable=False),
        sa.Column("config_key", sa.String(32), nullable=False),
        sa.Column("value", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["study_id"], ["studies.id"], name="fk_rejections_study_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_rejections"),
        sa.UniqueConstraint("study_id", "config_key", name="uq_rejections_study_id_config_key"),
    )
    op.create_table(
        "retunes",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("project_id", sa.String(32), nullable=False),
        sa.Column("target_key", sa.String(32), nullable=False),
        sa.Column("cause", sa.String(16), nullable=False),
        sa.Column("changes", sa.JSON(), nullable=False),
        sa.Column("schedule_id", sa.String(32), nullable=True),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("outcome", sa.String(16), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("challenge_study_id", sa.String(32), nullable=True),
        sa.Column("search_study_id", sa.String(32), nullable=True),
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
        sa.ForeignKeyConstraint(["challenge_study_id"], ["studies.id"], name="fk_retunes_challenge_study_id"),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name="fk_retunes_project_id"),
        sa.ForeignKeyConstraint(["schedule_id"], ["schedules.id"], name="fk_retunes_schedule_id", ondelete="SET NULL"),
        sa.ForeignKeyConstraint(["search_study_id"], ["studies.id"], name="fk_retunes_search_study_id"),
        sa.PrimaryKeyConstraint("id", name="pk_retunes"),
    )
    op.create_index("ix_retunes_due", "retunes", ["state", "not_before"])
    op.create_index("ix_retunes_project", "retunes", ["project_id", "created_at", "id"])
    op.create_index("ix_retunes_schedule", "retunes", ["schedule_id", "created_at"])
    op.create_index(
        "uq_retunes_unfinished",
        "retunes",
        ["project_id", "target_key"],
        unique=True,
        sqlite_where=_OPEN_RETUNE,
        postgresql_where=_OPEN_RETUNE,
    )
    op.create_table(
        "schedule_ticks",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("schedule_id", sa.String(32), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("kind", sa.String(8), nullable=False),
        sa.Column("state", sa.String(8), nullable=False),
        sa.Column("merged_ticks", sa.Integer(), nullable=False),
        sa.Column("targets", sa.Integer(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["schedule_id"], ["schedules.id"], name="fk_schedule_ticks_schedule_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_schedule_ticks"),
        sa.UniqueConstraint("schedule_id", "kind", "at", name="uq_schedule_ticks_schedule_id_kind_at"),
    )
    op.create_index("ix_schedule_ticks_state", "schedule_ticks", ["schedule_id", "state", "at"])
    op.create_table(
        "trials",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("study_id", sa.String(32), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("origin", sa.String(16), nullable=False),
        sa.Column("config", sa.JSON(), nullable=False),
        sa.Column("config_key", sa.String(32), nullable=False),
        sa.Column("prediction", sa.JSON(), nullable=True),
        sa.Column("reason", sa.JSON(), nullable=True),
        sa.Column("failure", sa.JSON(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["study_id"], ["studies.id"], name="fk_trials_study_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_trials"),
        sa.UniqueConstraint("study_id", "config_key", name="uq_trials_study_id_config_key"),
        sa.UniqueConstraint("study_id", "number", name="uq_trials_study_id_number"),
    )
    op.create_table(
        "webhooks",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("events", sa.JSON(), nullable=False),
        sa.Column("study_id", sa.String(32), nullable=True),
        sa.Column("project_id", sa.String(32), nullable=True),
        sa.Column("is_enabled", sa.Boolean(), nullable=False),
        sa.Column("disabled_reason", sa.Text(), nullable=True),
        sa.Column("secret_version", sa.Integer(), nullable=False),
        sa.Column("rotated_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name="fk_webhooks_project_id"),
        sa.ForeignKeyConstraint(["study_id"], ["studies.id"], name="fk_webhooks_study_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_webhooks"),
    )
    op.create_table(
        "canaries",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("project_id", sa.String(32), nullable=False),
        sa.Column("target_key", sa.String(32), nullable=False),
        sa.Column("recommendation_id", sa.String(32), nullable=False),
        sa.Column("worker_id", sa.String(32), nullable=False),
        sa.Column("study_id", sa.String(32), nullable=False),
        sa.Column("tick", sa.Integer(), nullable=False),
        sa.Column("role", sa.String(8), nullable=False),
        sa.Column("verdict", sa.String(16), nullable=True),
        sa.Column("tokens_per_s_per_gpu", sa.Double(), nullable=True),
        sa.Column("change", sa.Double(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name="fk_canaries_project_id"),
        sa.ForeignKeyConstraint(["recommendation_id"], ["recommendations.id"], name="fk_canaries_recommendation_id"),
        sa.ForeignKeyConstraint(["study_id"], ["studies.id"], name="fk_canaries_study_id"),
        sa.ForeignKeyConstraint(["worker_id"], ["workers.id"], name="fk_canaries_worker_id"),
        sa.PrimaryKeyConstraint("id", name="pk_canaries"),
        sa.UniqueConstraint(
            "project_id", "target_key", "tick", "role", name="uq_canaries_project_id_target_key_tick_role"
        ),
    )
    op.create_index("ix_canaries_target", "canaries", ["project_id", "target_key", "created_at"])
    op.create_index("ix_canaries_verdict", "canaries", ["verdict", "created_at"])
    op.create_table(
        "decisions",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("project_id", sa.String(32), nullable=False),
        sa.Column("target_key", sa.String(32), nullable=False),
        sa.Column("recommendation_id", sa.String(32), nullable=False),
        sa.Column("action", sa.String(16), nullable=False),
        sa.Column("by", sa.String(100), nullable=False),
        sa.Column("note", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name="fk_decisions_project_id"),
        sa.ForeignKeyConstraint(["recommendation_id"], ["recommendations.id"], name="fk_decisions_recommendation_id"),
        sa.PrimaryKeyConstraint("id", name="pk_decisions"),
    )
    op.create_index("ix_decisions_target", "decisions", ["project_id", "target_key", "id"])
    op.create_table(
        "deliveries",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("webhook_id", sa.String(32), nullable=False),
        sa.Column("type", sa.String(32), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("status", sa.Integer(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("next_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["webhook_id"], ["webhooks.id"], name="fk_deliveries_webhook_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_deliveries"),
    )
    op.create_index("ix_deliveries_due", "deliveries", ["state", "next_at"])
    op.create_index("ix_deliveries_webhook", "deliveries", ["webhook_id", "created_at"])
    op.create_table(
        "runs",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("study_id", sa.String(32), nullable=False),
        sa.Column("trial_id", sa.Integer(), nullable=True),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("purpose", sa.String(16), nullable=False),
        sa.Column("comparison_round", sa.Integer(), nullable=False),
        sa.Column("comparison_block", sa.Integer(), nullable=True),
        sa.Column("undecided_s", sa.JSON(), nullable=True),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("worker_id", sa.String(32), nullable=True),
        sa.Column("worker_session", sa.String(64), nullable=True),
        sa.Column("host_id", sa.String(128), nullable=True),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("lease_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("fingerprint_key", sa.String(32), nullable=True),
        sa.Column("measured_for", sa.String(32), nullable=True),
        sa.Column("measurement", sa.JSON(), nullable=True),
        sa.Column("resume_check", sa.JSON(), nullable=True),
        sa.Column("diagnosis", sa.LargeBinary(), nullable=True),
        sa.Column("failure", sa.JSON(), nullable=True),
        sa.Column("progress", sa.JSON(), nullable=True),
        sa.Column("log_tail", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["fingerprint_key"], ["fingerprints.key"], name="fk_runs_fingerprint_key"),
        sa.ForeignKeyConstraint(["study_id"], ["studies.id"], name="fk_runs_study_id", ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["trial_id"], ["trials.id"], name="fk_runs_trial_id", ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["worker_id"], ["workers.id"], name="fk_runs_worker_id"),
        sa.PrimaryKeyConstraint("id", name="pk_runs"),
        sa.UniqueConstraint("study_id", "position", name="uq_runs_study_id_position"),
    )
    op.create_index("ix_runs_lease", "runs", ["state", "lease_until"])
    op.create_index("ix_runs_measured", "runs", ["fingerprint_key", "purpose", "finished_at", "id"])
    op.create_index("ix_runs_open_traces", "runs", ["study_id"], sqlite_where=_OPEN_TRACE, postgresql_where=_OPEN_TRACE)
    op.create_index("ix_runs_trial_id", "runs", ["trial_id"])
    op.create_index(
        "uq_runs_session_running",
        "runs",
        ["worker_session"],
        unique=True,
        sqlite_where=_RUNNING,
        postgresql_where=_RUNNING,
    )
    op.create_table(
        "tuning_targets",
        sa.Column("project_id", sa.String(32), nullable=False),
        sa.Column("target_key", sa.String(32), nullable=False),
        sa.Column("target_key_without_fingerprint", sa.String(32), nullable=False),
        sa.Column("model_key", sa.String(32), nullable=False),
        sa.Column("model_type", sa.String(100), nullable=False),
        sa.Column("device", sa.String(8), nullable=False),
        sa.Column("recommended_id", sa.String(32), nullable=True),
        sa.Column("is_pinned", sa.Boolean(), nullable=False),
        sa.Column("freshness", sa.String(8), nullable=False),
        sa.Column("changed_fields", sa.JSON(), nullable=False),
        sa.Column("fingerprint_key", sa.String(32), nullable=True),
        sa.Column("stale_since", sa.DateTime(timezone=True), nullable=True),
        sa.Column("stale_announced_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("stale_announced_for", sa.JSON(), nullable=False, server_default="[]"),
        sa.Column("uses", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("planned_gpu_seconds", sa.Double(), nullable=True),
        sa.Column("superseded_by", sa.String(32), nullable=True),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["fingerprint_key"], ["fingerprints.key"], name="fk_tuning_targets_fingerprint_key"),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name="fk_tuning_targets_project_id"),
        sa.ForeignKeyConstraint(["recommended_id"], ["recommendations.id"], name="fk_tuning_targets_recommended_id"),
        sa.PrimaryKeyConstraint("project_id", "target_key", name="pk_tuning_targets"),
    )
    op.create_index("ix_tuning_targets_fingerprint", "tuning_targets", ["fingerprint_key"])
    op.create_index("ix_tuning_targets_model", "tuning_targets", ["project_id", "model_key", "updated_at"])
    op.create_index("ix_tuning_targets_type", "tuning_targets", ["project_id", "model_type", "device", "updated_at"])
    op.create_index(
        "ix_tuning_targets_without_fingerprint",
        "tuning_targets",
        ["project_id", "target_key_without_fingerprint", "updated_at"],
    )
    op.create_table(
        "attempts",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("run_id", sa.String(32), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("worker_id", sa.String(32), nullable=False),
        sa.Column("worker_session", sa.String(64), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("end", sa.String(16), nullable=True),
        sa.Column("failure", sa.JSON(), nullable=True),
        sa.Column("gpu_seconds", sa.Double(), nullable=True),
        sa.Column("report_key", sa.String(32), nullable=True),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_attempts_run_id", ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["worker_id"], ["workers.id"], name="fk_attempts_worker_id"),
        sa.PrimaryKeyConstraint("id", name="pk_attempts"),
        sa.UniqueConstraint("run_id", "attempt", name="uq_attempts_run_id_attempt"),
    )
    op.create_index("ix_attempts_finished", "attempts", ["finished_at"])
    op.create_table(
        "traces",
        sa.Column("run_id", sa.String(32), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("project_id", sa.String(64), nullable=False),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_traces_run_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "rank", name="pk_traces"),
    )
    op.create_index("ix_traces_project_id", "traces", ["project_id", "created_at"])


def downgrade() -> None:
    for table in (
        "traces",
        "attempts",
        "tuning_targets",
        "runs",
        "deliveries",
        "decisions",
        "canaries",
        "webhooks",
        "trials",
        "schedule_ticks",
        "retunes",
        "rejections",
        "recommendations",
        "page_sessions",
        "fingerprint_periods",
        "events",
        "workers",
        "studies",
        "schedules",
        "api_keys",
        "projects",
        "idempotent_requests",
        "fingerprints",
    ):
        op.drop_table(table)
