"""A verdict that is not confirmed is `not_faster` or `undecided`; a run can be repeated because its machine was disturbed.

Revision ID: 0019
Revises: 0018
"""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None

OLD = "no_significant_improvement"
WORTHWHILE, RULED_OUT = 1.02, 1.10
"""As in tuner.verdict.settling when this was written."""


def upgrade() -> None:
    change("studies", "result", told_apart)
    change("recommendations", "answer", lambda answer: each(answer, told_apart))


def downgrade() -> None:
    change("studies", "result", as_before)
    change("recommendations", "answer", lambda answer: each(answer, as_before))
    change("studies", "spec", lambda spec: without(spec.get("budget"), "repeat_disturbed"))
    change("studies", "profile", lambda profile: without(profile, "note"))
    change("studies", "promotion", lambda field: without(field, "defaults"))
    change("runs", "measurement", lambda measured: without(measured, "disturbed"))
    op.execute("UPDATE attempts SET \"end\" = 'released', failure = NULL WHERE \"end\" = 'disturbed'")


def change(table: str, column: str, changed: Any) -> None:
    """Apply a function that changes a stored value in place, and says whether it did."""
    rows = sa.table(table, sa.column("id", sa.String), sa.column(column, sa.JSON(none_as_null=True)))
    connection = op.get_bind()
    for row in connection.execute(sa.select(rows.c.id, rows.c[column]).where(rows.c[column].is_not(None))).all():
        if changed(row[1]):
            connection.execute(rows.update().where(rows.c.id == row.id).values({column: row[1]}))


def each(answer: dict[str, Any], changed: Any) -> bool:
    """Of a recommendation: what it rests on, and what a renewed one goes back to."""
    return any([changed(part) for part in (answer["result"], answer.get("renewed")) if part])


def told_apart(result: dict[str, Any]) -> bool:
    if result["verdict"] != OLD:
        return False
    speedup = result.get("speedup")
    is_open = speedup and (speedup["value"] > WORTHWHILE or speedup["ci95"][1] >= RULED_OUT)
    result["verdict"] = "undecided" if is_open else "not_faster"
    return True


def as_before(result: dict[str, Any]) -> bool:
    is_other = result["verdict"] != "confirmed"
    if is_other:
        result["verdict"] = OLD
    return any([is_other, without(result, "undecided"), without(result, "against_defaults")])


def without(value: dict[str, Any] | None, name: str) -> bool:
    """Take a field out; whether it was there."""
    return value is not None and value.pop(name, value) is not value
