"""Demand for workers: the hardware that open studies need, for autoscalers that start and stop machines."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy.orm import Session

from shardtune.api_schemas.machines.demand import Demand, Need
from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.studies.reasons import StudyReasonCode
from shardtune.api_schemas.studies.study_state import StudyPurpose, StudyState
from shardtune.db.queries import studies, workers
from shardtune.db.tables.studies import StudyRow
from shardtune.db.tables.workers import WorkerRow
from shardtune.service.access import quotas, retune_budget
from shardtune.service.process.context import Context
from shardtune.service.studies import wait_for_worker
from shardtune.service.workers import compatibility, registry
from shardtune.service.workers.hardware_shape import has_same_shape

_SAME_IMAGE = timedelta(hours=1)
"""Time after a pool's last worker has registered during which the pool's next worker is assumed to lack the same
packages.
"""


@dataclass(frozen=True)
class PoolOffer:
    """Hardware and models that the workers of an autoscaled pool would offer."""

    cluster: Cluster | None = None
    """Cluster that one worker of the pool has; None means any hardware."""
    models: frozenset[str] = frozenset()
    """Entry points of user-written models that the pool's workers are allowed to run."""
    scripts: frozenset[str] = frozenset()
    """User-written training scripts that the pool's workers are allowed to run."""

    def suits(self, row: StudyRow) -> bool:
        """Whether a worker of the pool has the kind and size of hardware that a study needs, and allows the study's
        model code.
        """
        model = row.spec.model
        is_allowed = (model.entry_point is None or model.entry_point in self.models) and (
            model.script is None or model.script in self.scripts
        )
        return is_allowed and (self.cluster is None or has_same_shape(self.cluster, row.cluster))


def read(context: Context, pool: PoolOffer | None = None) -> Demand:
    """Demand for workers in the sender's projects: waiting and running studies, grouped by hardware and user code.
    With a pool, only studies are counted that the pool's workers can run and that one more worker would help.
    """
    studies_by_need: defaultdict[tuple[str, ...], list[StudyRow]] = defaultdict(list)
    with context.db.read() as session:
        rows = studies.needing_workers(session, context.principal.project_id)
        if pool is not None:
            stopped_ids = _stopped_ids(context, session, rows) | _unpackaged_ids(context, session, rows)
            rows = [row for row in rows if pool.suits(row) and row.id not in stopped_ids]
        workers_by_study = _suitable_workers(context, session, rows)
    for row in rows:
        studies_by_need[_need_key(row)].append(row)
    needs = [_need(rows_of_need, workers_by_study) for rows_of_need in studies_by_need.values()]
    return Demand(
        needs=tuple(sorted(needs, key=lambda need: -len(need.waiting))),
        studies=len(rows),
        without_worker=sum(not workers_by_study[row.id] for row in rows),
    )


def _stopped_ids(context: Context, session: Session, rows: Sequence[StudyRow]) -> set[str]:
    """Ids of the studies that get no run for a reason that one more worker would not remove, such as a used-up quota.
    For them, an autoscaler would start workers without end.
    """
    projects = {row.project_id: row.project for row in rows}
    spent_projects = {
        project_id
        for project_id, project in projects.items()
        if quotas.is_exhausted(session, project_id, project.quotas, context.now())
    }
    return {
        row.id
        for row in rows
        if row.reason_code == StudyReasonCode.WAITS_FOR_WORKER
        or row.project_id in spent_projects
        or (row.purpose != StudyPurpose.USER and not retune_budget.admits_run(context, session, row))
    }


def _unpackaged_ids(context: Context, session: Session, rows: Sequence[StudyRow]) -> set[str]:
    """Ids of the waiting studies that would not begin on another worker of the same image: a worker with suitable
    hardware has just registered, but lacks a package such as torchao. For them, an autoscaler would start the same
    image again and again.
    """
    waiting = [row for row in rows if row.state is StudyState.WAITING]
    since = context.now() - _SAME_IMAGE
    newest_workers = {
        project_id: [
            worker
            for worker in workers.seen_since(session, since, project_id=project_id)
            if worker.registered_at >= since
        ]
        for project_id in {row.project_id for row in waiting}
    }
    return {
        row.id
        for row in waiting
        if any(
            worker.registered_at >= row.created_at and compatibility.lacks_packages(worker, row)
            for worker in newest_workers[row.project_id]
        )
    }


def _suitable_workers(context: Context, session: Session, rows: Sequence[StudyRow]) -> dict[str, set[str]]:
    """Ids of the live workers on which each study could begin, by study id."""
    # Workers are counted per project: a worker bound to one project runs no study of another.
    live: dict[str, Sequence[WorkerRow]] = {
        project_id: registry.live_workers(context, session, project_id)
        for project_id in {row.project_id for row in rows}
    }
    return {
        row.id: {worker.id for worker in live[row.project_id] if compatibility.can_begin_waiting_study(worker, row)}
        for row in rows
    }


def _need_key(row: StudyRow) -> tuple[str, ...]:
    model = row.spec.model
    return row.cluster.content_key(), model.entry_point or "", model.script or ""


def _need(rows: Sequence[StudyRow], workers_by_study: Mapping[str, set[str]]) -> Need:
    first, waiting = rows[0], [row for row in rows if row.state is StudyState.WAITING]
    # Any study of the group: adapter, optimizer and float8 differ among them, and not every worker has all.
    suitable_workers = set().union(*(workers_by_study[row.id] for row in rows))
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
