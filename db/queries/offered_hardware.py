"""Queries on the hardware that registered workers offer, and on what they measured of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import bindparam, func, or_, select
from sqlalchemy.orm import Session

from shardtune.api_schemas.machines.hardware import Cluster, Fingerprint, MeasuredHardware
from shardtune.db.queries import workers
from shardtune.db.tables.fingerprints import FingerprintRow
from shardtune.db.tables.workers import WorkerRow

_MOST_MACHINES = 500


@dataclass(frozen=True)
class OfferedMachine:
    """Hardware and software of registered workers. If several workers have the same, the most recently active one
    stands for all of them."""

    name: str
    project_id: str | None
    seen_at: datetime
    cluster: Cluster
    fingerprint: Fingerprint


def machines(session: Session, project_id: str | None) -> Sequence[OfferedMachine]:
    """Return the hardware of the workers that serve a project (None means any project), without the other contents of
    their offers; at most 500."""
    cluster = workers.offered("cluster")
    alike = (WorkerRow.project_id, WorkerRow.fingerprint_key, cluster)
    columns = (WorkerRow.name, WorkerRow.project_id, WorkerRow.seen_at, WorkerRow.fingerprint_key)
    place = func.row_number().over(partition_by=alike, order_by=WorkerRow.seen_at.desc())
    ranked = (
        select(*columns, cluster.label("cluster"), place.label("place")).where(*workers.serving(project_id)).subquery()
    )
    query = select(ranked.c.name, ranked.c.project_id, ranked.c.seen_at, ranked.c.cluster, FingerprintRow.value)
    query = query.join(FingerprintRow, FingerprintRow.key == ranked.c.fingerprint_key).where(ranked.c.place == 1)
    return [
        OfferedMachine(name, whose, seen_at, Cluster.model_validate_json(text), value)
        for name, whose, seen_at, text, value in session.execute(
            query.order_by(ranked.c.seen_at.desc()).limit(_MOST_MACHINES)
        )
    ]


def measured_hardware(session: Session, fingerprint_key: str, project_id: str) -> MeasuredHardware | None:
    """Return the hardware rates that a worker with a given fingerprint (hardware and software versions) has measured;
    of several workers, the most recently active one counts. Only the project's own workers and those that serve every
    project count, because a project must not trust measurements of others."""
    parameters = {"measured_on": fingerprint_key, "of_project": project_id}
    offer = session.scalars(_MEASURED, parameters).one_or_none()
    return offer.measured if offer is not None else None


_MEASURED = (
    select(WorkerRow.offer)
    .where(
        WorkerRow.fingerprint_key == bindparam("measured_on"),
        workers.offered("measured").is_not(None),
        WorkerRow.forgotten_at.is_(None),
        or_(WorkerRow.project_id.is_(None), WorkerRow.project_id == bindparam("of_project")),
    )
    .order_by(WorkerRow.seen_at.desc())
    .limit(1)
)
