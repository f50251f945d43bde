"""${message}

Revision ID: ${up_revision}
Revises: ${down_revision | comma,n}
"""

import sqlalchemy as sa
from alembic import op
${imports if imports else ""}
revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = ${repr(branch_labels)}
depends_on = ${repr(depends_on)}
# Oldest revision whose code can read and write this schema. Keep the former revision's value after an expansion: new tables,
# nullable columns, columns with a server default that stays. Use this revision's id after a contraction, and where this
# code stores words that older code cannot read, such as a new purpose of runs.
oldest_code = ${repr(up_revision)}


def upgrade() -> None:
    ${upgrades if upgrades else "pass"}


def downgrade() -> None:
    ${downgrades if downgrades else "pass"}
