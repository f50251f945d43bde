"""Run Alembic revisions on the connection passed by `db.session.migration_config`."""

from collections.abc import Collection
from typing import Any

from alembic import context
from alembic.runtime.migration import MigrationContext, MigrationInfo
from alembic.script import Script
from sqlalchemy import delete, insert, inspect

from shardtune.db.tables.best import TuningTargetRow
from shardtune.db.tables.canaries import CanaryRow
from shardtune.db.tables.events import EventRow
from shardtune.db.tables.fingerprint_periods import FingerprintPeriodRow
from shardtune.db.tables.retunes import RetuneRow
from shardtune.db.tables.schema import SchemaCompatibilityRow
from shardtune.db.tables.traces import TraceRow
from shardtune.db.tables.webhooks import WebhookRow

_ADDING = (
    TuningTargetRow,
    CanaryRow,
    EventRow,
    FingerprintPeriodRow,
    RetuneRow,
    SchemaCompatibilityRow,
    TraceRow,
    WebhookRow,
)
assert len({row.metadata for row in _ADDING}) == 1, "all modules must be imported: each adds its tables"


def _record_compatibility(ctx: MigrationContext, step: MigrationInfo, heads: Collection[Any], **_: object) -> None:
    """Record with a schema revision which older code can use the schema after this revision, by naming the oldest
    revision of such code."""
    connection = ctx.connection
    assert connection is not None, "migrations need a connection"
    if not heads or not inspect(connection).has_table(SchemaCompatibilityRow.__tablename__):
        return
    (revision,) = heads
    script = step.revision_map.get_revision(revision)
    assert isinstance(script, Script), f"revision {revision} has no script"
    connection.execute(delete(SchemaCompatibilityRow))
    row = {"revision": revision, "oldest_code": getattr(script.module, "oldest_code", revision)}
    connection.execute(insert(SchemaCompatibilityRow).values(row))


context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=TuningTargetRow.metadata,
    # SQLite changes a table by copying it; only batch operations do that.
    render_as_batch=True,
    compare_type=True,
    # The transaction around everything is the caller's.
    transactional_ddl=False,
    # Alembic's type calls it with positional arguments, its code by name.
    on_version_apply=_record_compatibility,  # type: ignore[arg-type]
)
context.run_migrations()
