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
    """Table row of a worker (a resource pool with a stable name) and its current session."""

    __tablename__ = "workers"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    name: Mapped[str] = mapped_column(String(200))
    """Name of the worker, unique within a project and among the workers that serve every project."""
    holder_id: Mapped[str | None] = mapped_column(String(32))
    """Id of the key holder whose keys may register under this name (`ApiKeyRow.holder_id`); None: the next holder to
    register."""
    session: Mapped[str] = mapped_column(String(64), unique=True)
    protocol_version: Mapped[int | None]
    """Protocol version in which the worker reads leases. None: unknown until the worker asks for work, since an older
    release, whose table lacked this column, registered it."""
    offer: Mapped[Offer] = mapped_column(Stored(Offer))
    """Part of the worker's inventory that is read for all workers at once."""
    inventory: Mapped[Inventory] = mapped_column(Stored(Inventory), deferred=True)
    """Complete inventory of the worker, loaded only on request: tens of kilobytes that no decision needs."""
    fingerprint_key: Mapped[str] = mapped_column(ForeignKey(FingerprintRow.key))
    project_id: Mapped[str | None] = mapped_column(ForeignKey(ProjectRow.id))
    """Project to whose studies the worker is limited; None means all projects."""
    registered_at: Mapped[datetime]
    seen_at: Mapped[datetime]
    """Time of the last request in the worker's session."""
    is_draining: Mapped[bool] = mapped_column(default=False)
    """Whether the worker gets no more runs; remains set after a restart of the worker."""
    set_aside: Mapped[str | None] = mapped_column(Text)
    """Reason why the service drains the worker by itself, until the worker restarts or a person resumes it."""
    condition: Mapped[str | None] = mapped_column(Text)
    """Problem of the worker found by a canary (speed check); None if none was found."""
    forgotten_at: Mapped[datetime | None]
    """Time at which the worker was forgotten, after which lists omit it until it registers again; its runs are kept."""
    host_id: Mapped[str | None] = mapped_column(String(128), index=True)
    """Id of the host that the worker shares with other workers of its project; None if it uses the machine alone."""
    host_wait: Mapped[HostWait | None] = mapped_column(Stored(HostWait))
    """State of the worker while it waits for its host, because a run needs more of the host than is free, or because
    the host is reserved for the next run of its pair; None if it does not wait."""

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
