"""Column with the protocol version in which each worker reads its leases.

Revision ID: 0007_worker_protocol
Revises: 0006_recipes
"""

import sqlalchemy as sa
from alembic import op

revision = "0007_worker_protocol"
down_revision = "0006_recipes"
branch_labels = None
depends_on = None
# Code of the revision before inserts workers without a version, which the next request for work sets.
oldest_code = "0006_recipes"


def upgrade() -> None:
    op.add_column("workers", sa.Column("protocol_version", sa.Integer()))


def downgrade() -> None:
    op.drop_column("workers", "protocol_version")
