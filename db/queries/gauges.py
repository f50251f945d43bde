"""Queries of current figures (gauges) for operators' metrics."""

from collections import Counter
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.notifications.webhooks import DeliveryState
from shardtune.api_schemas.studies.study_state import StudyState
from shardtune.api_schemas.trials.trial import OPEN_TRIAL_STATES, TrialState
from shardtune.db.queries import studies
from shardtune.db.tables.studies import StudyRow
from shardtune.db.tables.trials import RunRow
from shardtune.db.tables.webhooks import DeliveryRow
from shardtune.db.tables.workers import WorkerRow


@dataclass(frozen=True)
class Gauges:
    """Figures for Prometheus (gauges) that were computed from the database at one moment."""

    live_workers: int
    runs: dict[TrialState, int]
    """Number of the runs that have not ended, for each state."""
    oldest_waiting_at: datetime | None
    """Creation time of the oldest run that waits for a worker."""
    last_answer_at: datetime | None
    """Time at which a study last completed."""
    waiting_deliveries: int
    studies: dict[StudyState, int]
    """Number of studies for each state; states without studies are left out."""
    needed: Counter[tuple[Cluster, StudyState]]
    """Number of studies that are running or wait for a worker, for each cluster and state."""


def read(session: Session, live_since: datetime) -> Gauges:
    """Read all gauges (figures for Prometheus) from the database. Workers that sent a request since `live_since`
    count as live."""
    waiting = RunRow.state == TrialState.WAITING
    complete = StudyRow.state == StudyState.COMPLETE
    by_state = select(StudyRow.state, func.count()).group_by(StudyRow.state)
    return Gauges(
        live_workers=_count(session, WorkerRow.seen_at >= live_since),
        runs={state: _count(session, RunRow.state == state) for state in OPEN_TRIAL_STATES},
        oldest_waiting_at=session.scalars(select(func.min(RunRow.created_at)).where(waiting)).one(),
        last_answer_at=session.scalars(select(func.max(StudyRow.finished_at)).where(complete)).one(),
        waiting_deliveries=_count(session, DeliveryRow.state == DeliveryState.WAITING),
        studies=dict(session.execute(by_state).all()),
        needed=Counter((row.cluster, row.state) for row in studies.needing_workers(session, None)),
    )


def _count(session: Session, where: ColumnElement[bool]) -> int:
    return session.scalars(select(func.count()).where(where)).one()
