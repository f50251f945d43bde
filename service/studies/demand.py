"""Demand for workers: the hardware that open studies need, for autoscalers that start and stop machines."""

from collections import defaultdict
from collections.abc import Sequence

from sqlalchemy.orm import Session

from shardtune.api_schemas.machines.demand import Demand, Need
from shardtune.api_schemas.studies.study import StudyState
from shardtune.db.queries import studies
from shardtune.db.tables.studies import StudyRow
from shardtune.service.process.context import Context
from shardtune.service.studies import wait_for_worker
from shardtune.service.workers import compatibility, registry


def read(context: Context) -> Demand:
    """Demand for workers: the hardware of the waiting and running studies in the sender's projects, grouped by hardware
    and user code.
    """
    studies_by_need: defaultdict[tuple[str, ...], list[StudyRow]] = defaultdict(list)
    with context.db.read() as session:
        for row in studies.needing_workers(session, context.principal.project_id):
            studies_by_need[_need_key(row)].append(row)
        needs = [_need(context, session, rows) for rows in studies_by_need.values()]
    return Demand(needs=tuple(sorted(needs, key=lambda need: -len(need.waiting))))


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
