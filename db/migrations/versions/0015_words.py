"""One word per idea: system_study, promotion, case_key, fingerprint_periods.

Revision ID: 0015
Revises: 0014
"""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

COLUMNS = (
    ("studies", "errand", "system_study"),
    ("studies", "match", "promotion"),
    ("studies", "match_round", "promotion_round"),
    ("runs", "match_round", "promotion_round"),
    ("recommendations", "study_key", "case_key"),
    ("best_configs", "study_key", "case_key"),
    ("best_configs", "shape_key", "case_key_without_fingerprint"),
    ("best_configs", "stale_told_at", "stale_announced_at"),
    ("best_configs", "stale_told_for", "stale_announced_for"),
    ("decisions", "study_key", "case_key"),
    ("canaries", "study_key", "case_key"),
    ("retunes", "study_key", "case_key"),
)
PRESENT = sa.text("until IS NULL")


def upgrade() -> None:
    op.drop_index("uq_fingerprint_eras_present", "fingerprint_eras")
    op.drop_index("ix_fingerprint_eras_fingerprint", "fingerprint_eras")
    op.rename_table("fingerprint_eras", "fingerprint_periods")
    periods("fingerprint_periods")
    op.drop_index("ix_best_shape", "best_configs")
    op.drop_index("ix_decisions_subject", "decisions")
    unique("study_key", "case_key", COLUMNS)
    op.create_index(
        "ix_best_without_fingerprint", "best_configs", ["project_id", "case_key_without_fingerprint", "updated_at"]
    )
    op.create_index("ix_decisions_case", "decisions", ["project_id", "case_key", "id"])
    constraints("fingerprint_periods", "fingerprint_eras")
    named_cases("study_keys", "case_keys")


def downgrade() -> None:
    named_cases("case_keys", "study_keys")
    constraints("fingerprint_periods", "fingerprint_eras", back=True)
    op.drop_index("ix_decisions_case", "decisions")
    op.drop_index("ix_best_without_fingerprint", "best_configs")
    unique("case_key", "study_key", [(table, new, old) for table, old, new in COLUMNS])
    op.create_index("ix_decisions_subject", "decisions", ["project_id", "study_key", "id"])
    op.create_index("ix_best_shape", "best_configs", ["project_id", "shape_key", "updated_at"])
    op.drop_index("uq_fingerprint_periods_present", "fingerprint_periods")
    op.drop_index("ix_fingerprint_periods_fingerprint", "fingerprint_periods")
    op.rename_table("fingerprint_periods", "fingerprint_eras")
    periods("fingerprint_eras")


def periods(table: str) -> None:
    """Both databases rename a table, but SQLite no index."""
    op.create_index(
        f"uq_{table}_present",
        table,
        ["worker_id"],
        unique=True,
        sqlite_where=PRESENT,
        postgresql_where=PRESENT,
    )
    op.create_index(f"ix_{table}_fingerprint", table, ["fingerprint_key", "since"])


def unique(old: str, new: str, columns) -> None:
    """Rename the columns, and the one constraint that is named after one of them."""
    with op.batch_alter_table("canaries") as batch:
        batch.drop_constraint(f"uq_canaries_project_id_{old}_tick_role", type_="unique")
    for table, before, after in columns:
        # Indexes and keys follow; a batch would make the whole table anew.
        op.execute(f'ALTER TABLE {table} RENAME COLUMN "{before}" TO "{after}"')
    with op.batch_alter_table("canaries") as batch:
        batch.create_unique_constraint(
            f"uq_canaries_project_id_{new}_tick_role", ["project_id", new, "tick", "role"]
        )


def constraints(new: str, old: str, back: bool = False) -> None:
    """Postgres keeps the names of keys when their table gets another; SQLite's are inside the table's text."""
    if op.get_bind().dialect.name != "postgresql":
        return
    for name in ("pk_{}", "fk_{}_worker_id", "fk_{}_fingerprint_key", "fk_{}_predecessor_key"):
        before, after = (name.format(new), name.format(old)) if back else (name.format(old), name.format(new))
        op.execute(f"ALTER TABLE {new} RENAME CONSTRAINT {before} TO {after}")


def named_cases(before: str, after: str) -> None:
    """The field inside the stored specs of schedules."""
    schedules = sa.table("schedules", sa.column("id", sa.String), sa.column("spec", sa.JSON))
    connection = op.get_bind()
    for row in connection.execute(sa.select(schedules.c.id, schedules.c.spec)).all():
        cases = row.spec.get("cases", {})
        if before in cases:
            cases[after] = cases.pop(before)
            connection.execute(schedules.update().where(schedules.c.id == row.id).values(spec=row.spec))
