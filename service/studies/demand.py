"""Demand for workers: the hardware that open studies need, for autoscalers that start and stop machines."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy.orm import Session

from shardtune.api_schemas.machines.demand import Demand, Need
from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.studies.study import StudyState
from shardtune.db.queries import studies
from shardtune.db.tables.studies import StudyRow
from shardtune.service.process.context import Context
from shardtune.service.studies import wait_for_worker
from shardtune.service.workers import compatibility, registry
from shardtune.service.workers.hardware_shape import has_same_shape


@dataclass(frozen=True)
class PoolOffer:
    """Hardware and models that the workers of an autoscaled pool would offer."""

    cluster: Cluster | None = None
    """Cluster of one worker; None: any hardware."""
    models: frozenset[str] = frozenset()
    """Model entry points that the workers allow."""
    scripts: frozenset[str] = frozenset()
    """Training scripts that the workers allow."""

    def suits(self, row: StudyRow) -> bool:
        """Whether a worker of the pool has a study's kind and size of hardware, and allows its model."""
        model = row.spec.model
        is_allowed = (model.entry_point is None or model.entry_point in self.models) and (
            model.script is None or model.script in self.scripts
        )
        return is_allowed and (self.cluster is None or has_same_shape(self.cluster, row.cluster))


def read(context: Context, pool: PoolOffer | None = None) -> Demand:
    """Demand for workers: the hardware of the waiting and running studies in the sender's projects, grouped by hardware
    and user code; with a pool, of the studies that its workers suit.
    """
    studies_by_need: defaultdict[tuple[str, ...], list[StudyRow]] = defaultdict(list)
    with context.db.read() as session:
        for row in studies.needing_workers(session, context.principal.project_id):
            if pool is None or pool.suits(row):
                studies_by_need[_need_key(row)].append(row)
        needs = [_need(context, session, rows) for rows in studies_by_need.values()]
    return Demand(
        needs=tuple(sorted(needs, key=lambda need: -len(need.waiting))),
        studies=sum(map(_studies, needs)),
        without_worker=sum(_studies(need) for need in needs if need.live_workers == 0),
    )


def _studies(need: Need) -> int:
    return len(need.waiting) + need.running


def _need_key(row: StudyRow) -> tuple[str, ...]:
    model = row.spec.model
    return row.cluster.content_key(), model.entry_point or "", model.script or ""


def _need(context: Context, session: Session, rows: Sequence[StudyRow]) -> Need:
    first, waiting = rows[0], [row for row in rows if row.state is StudyState.WAITING]
    # Workers are counted per project: a worker bound to one project runs no study of another.
    suitable_workers = {
        worker.id
        for project_id in {row.project_id for row in rows}
        for worker in registry.live_workers(context, session, project_id)
        if compatibility.can_begin_waiting_study(worker, first)
    }
    return Need(
        cluster=first.cluster,
        entry_point=first.spec.model.entry_point,
        script=first.spec.model.script,
        waiting=tuple(row.id for row in waiting),
        running=len(rows) - len(waiting),
        live_workers=len(suitable_workers),
        waiting_since=min((row.created_at for row in waiting), default=None),
        until=min(map(wait_for_worker.wait_deadline, waiting), default=None),
    )
