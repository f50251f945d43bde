"""Run Alembic revisions on the connection passed by `db.session.migration_config`."""

from alembic import context

from shardtune.db.tables.best import TuningTargetRow
from shardtune.db.tables.canaries import CanaryRow
from shardtune.db.tables.fingerprints import FingerprintPeriodRow
from shardtune.db.tables.retunes import RetuneRow
from shardtune.db.tables.traces import TraceRow

_ADDING = (TuningTargetRow, CanaryRow, FingerprintPeriodRow, RetuneRow, TraceRow)
assert len({row.metadata for row in _ADDING}) == 1, "all modules must be imported: each adds its tables"

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=TuningTargetRow.metadata,
    # SQLite changes a table by copying it; only batch operations do that.
    render_as_batch=True,
    compare_type=True,
    # The transaction around everything is the caller's.
    transactional_ddl=False,
)
context.run_migrations()
