"""Columns with the code and the details of a study's reason, and whether a retune waits for the budget.

Revision ID: 0008_reason_codes
Revises: 0007_worker_protocol
"""

import sqlalchemy as sa
from alembic import op

revision = "0008_reason_codes"
down_revision = "0007_worker_protocol"
branch_labels = None
depends_on = None
# Code of the revision before stores reasons without a code, which read as reasons of an unknown kind.
oldest_code = "0007_worker_protocol"
_REPLACED = "the given baseline was replaced: "


def upgrade() -> None:
    op.add_column("studies", sa.Column("reason_code", sa.String(32)))
    op.add_column("studies", sa.Column("reason_details", sa.Text()))
    op.add_column("retunes", sa.Column("waits_for_budget", sa.Boolean(), nullable=False, server_default=sa.false()))
    # The two reasons by which the service decides something.
    studies = sa.table("studies", sa.column("reason", sa.Text), sa.column("reason_code", sa.String))
    waits = studies.c.reason.startswith("waiting for a worker: ", autoescape=True)
    op.execute(studies.update().where(waits).values(reason_code="waits_for_worker"))
    all_tried = studies.c.reason == "every configuration that may fit has been tried"
    op.execute(studies.update().where(all_tried).values(reason_code="all_tried"))
    # A retune's outcome has a column of its own.
    retunes = sa.table(
        "retunes",
        sa.column("state", sa.String),
        sa.column("outcome", sa.String),
        sa.column("reason", sa.Text),
        sa.column("waits_for_budget", sa.Boolean),
    )
    repeated = retunes.c.reason.startswith(retunes.c.outcome + ": ")
    waits = retunes.c.reason.startswith("waits for budget, ", autoescape=True) & (retunes.c.state == "running")
    op.execute(retunes.update().where(waits).values(waits_for_budget=sa.true()))
    without = sa.func.substr(retunes.c.reason, sa.func.length(retunes.c.outcome) + 3)
    op.execute(retunes.update().where(repeated).values(reason=without))
    _state_replaced_baselines()


def _state_replaced_baselines() -> None:
    """Set the result's `replaced_baseline`, which only a note said before."""
    studies = sa.table("studies", sa.column("id", sa.String), sa.column("result", sa.JSON))
    named = sa.cast(studies.c.result, sa.Text).like(f"%{_REPLACED}%")
    for study_id, result in op.get_bind().execute(sa.select(studies.c.id, studies.c.result).where(named)).all():
        reasons = [note.removeprefix(_REPLACED) for note in result["notes"] if note.startswith(_REPLACED)]
        if reasons:
            stated = {**result, "replaced_baseline": reasons[0]}
            op.execute(studies.update().where(studies.c.id == study_id).values(result=stated))


def downgrade() -> None:
    op.drop_column("retunes", "waits_for_budget")
    op.drop_column("studies", "reason_details")
    op.drop_column("studies", "reason_code")
