"""Table of workers."""

from datetime import datetime

from sqlalchemy import ForeignKey, Index, String, Text, text
from sqlalchemy.orm import Mapped, mapped_column

from shardtune.api_schemas.machines.hardware import Inventory, Offer
from shardtune.api_schemas.machines.host_partition import HostWait
from shardtune.db.tables.access import ProjectRow
from shardtune.db.tables.base import Row
from shardtune.db.tables.fingerprints import FingerprintRow
from shardtune.db.tables.types import Stored

_OF_A_PROJECT, _OF_NONE = text("project_id IS NOT NULL"), text("project_id IS NULL")


class WorkerRow(Row):
    """Table row of a worker and its current session. A worker is a set of devices with a name that stays the same."""

    __tablename__ = "workers"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    name: Mapped[str] = mapped_column(String(200))
    """Name of the worker, unique within a project and among the workers that serve every project."""
    holder_id: Mapped[str | None] = mapped_column(String(32))
    """Id of the holder (`ApiKeyRow.holder_id`) whose API keys may register a worker under this name. If None, the
    next holder that registers one gets the name."""
    session: Mapped[str] = mapped_column(String(64), unique=True)
    protocol_version: Mapped[int | None]
    """Protocol version in which the worker reads leases. None until the worker asks for work, if it was registered by
    an older release, whose table lacked this column."""
    offer: Mapped[Offer] = mapped_column(Stored(Offer))
    """Part of the worker's inventory (hardware, software and abilities) that is read for all workers at once."""
    inventory: Mapped[Inventory] = mapped_column(Stored(Inventory), deferred=True)
    """Complete inventory of the worker (hardware, software and abilities). It is loaded only on request: it has tens
    of kilobytes, and no decision needs it."""
    fingerprint_key: Mapped[str] = mapped_column(ForeignKey(FingerprintRow.key))
    project_id: Mapped[str | None] = mapped_column(ForeignKey(ProjectRow.id))
    """Project to whose studies the worker is limited; None means all projects."""
    registered_at: Mapped[datetime]
    seen_at: Mapped[datetime]
    """Time of the last request that the worker has sent since its start."""
    is_draining: Mapped[bool] = mapped_column(default=False)
    """Whether the worker gets no more runs. This stays so if the worker restarts."""
    set_aside: Mapped[str | None] = mapped_column(Text)
    """Reason why the service itself gives the worker no more runs. It applies until the worker restarts or a person
    resumes it."""
    condition: Mapped[str | None] = mapped_column(Text)
    """Problem of the worker that a canary (speed check of a recommended configuration) found; None if none was found.
    """
    forgotten_at: Mapped[datetime | None]
    """Time at which the worker was hidden from lists, which omit it until it registers again; its runs are kept."""
    host_id: Mapped[str | None] = mapped_column(String(128), index=True)
    """Id of the host, if the worker shares it with other workers of its project; None if it uses the machine alone."""
    host_wait: Mapped[HostWait | None] = mapped_column(Stored(HostWait))
    """Description of the wait, if the worker waits for its host. It waits because a run needs more of the host than
    is free, or because the host is reserved for the next run of a pair. None if it does not wait."""

    __table_args__ = (
        Index(
            "uq_workers_project_name",
            "project_id",
            "name",
            unique=True,
            sqlite_where=_OF_A_PROJECT,
            postgresql_where=_OF_A_PROJECT,
        ),
        Index("uq_workers_shared_name", "name", unique=True, sqlite_where=_OF_NONE, postgresql_where=_OF_NONE),
    )
