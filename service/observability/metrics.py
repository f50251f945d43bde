"""Prometheus metrics. Counters are this process's since its start (add replicas up); gauges are read from the database
at each scrape and are the same at every replica.
"""

from datetime import datetime

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from shardtune.api_schemas.studies import StudyState
from shardtune.api_schemas.trials import TrialState
from shardtune.db.tables.studies import DeliveryRow, RunRow, StudyRow, WorkerRow


class Metrics:
    """What one process counts."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._ended = Counter(
            "shardtune_attempts_ended", "Attempts by how they ended", ["purpose", "end"], registry=self._registry
        )
        self._gpu_seconds = Counter(
            "shardtune_gpu_seconds", "Wall seconds × ranks of ended attempts", ["purpose"], registry=self._registry
        )
        self._expired = Counter(
            "shardtune_leases_expired", "Leases whose worker was silent for too long", registry=self._registry
        )
        self._granted = Counter("shardtune_leases_granted", "Leases given out", ["purpose"], registry=self._registry)

    def granted(self, purpose: str) -> None:
        """A lease was given out."""
        self._granted.labels(purpose).inc()

    def ended(self, purpose: str, end: str, gpu_seconds: float) -> None:
        """An attempt ended and that is committed."""
        self._ended.labels(purpose, end).inc()
        self._gpu_seconds.labels(purpose).inc(gpu_seconds)

    def expired(self) -> None:
        """A lease ran out."""
        self._expired.inc()

    def page(self, session: Session, now: datetime, live_since: datetime, waiting_requests: int, streams: int) -> bytes:
        """Everything in Prometheus' text format."""
        present = CollectorRegistry()
        _gauge(present, "lease_requests_waiting", "Lease requests held open by this process", waiting_requests)
        _gauge(present, "event_streams", "Event streams held open by this process", streams)
        _gauge(present, "workers_live", "Workers heard of lately", _count(session, WorkerRow.seen_at >= live_since))
        for state in (TrialState.WAITING, TrialState.RUNNING):
            _gauge(
                present, f"runs_{state.value}", f"Runs that are {state.value}", _count(session, RunRow.state == state)
            )
        oldest = session.scalars(
            select(func.min(RunRow.created_at)).where(RunRow.state == TrialState.WAITING)
        ).one_or_none()
        _gauge(present, "queue_age_seconds", "Age of the oldest run that waits for a worker", _age(oldest, now))
        newest = session.scalars(
            select(func.max(StudyRow.finished_at)).where(StudyRow.state == StudyState.COMPLETE)
        ).one_or_none()
        _gauge(present, "best_config_age_seconds", "Since a study last came to its answer", _age(newest, now))
        _gauge(
            present,
            "webhook_deliveries_waiting",
            "Messages to webhooks not delivered yet",
            _count(session, DeliveryRow.state == "waiting"),
        )
        studies = Gauge("shardtune_studies", "Studies by state", ["state"], registry=present)
        for study_state, count in session.execute(select(StudyRow.state, func.count()).group_by(StudyRow.state)):
            studies.labels(study_state.value).set(count)
        return generate_latest(self._registry) + generate_latest(present)


def _gauge(registry: CollectorRegistry, name: str, what: str, value: float) -> None:
    Gauge(f"shardtune_{name}", what, registry=registry).set(value)


def _count(session: Session, where: ColumnElement[bool]) -> int:
    return session.scalars(select(func.count()).where(where)).one()


def _age(moment: datetime | None, now: datetime) -> float:
    """Seconds; 0 where there is nothing."""
    return 0.0 if moment is None else max(0.0, (now - moment).total_seconds())
