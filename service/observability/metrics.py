"""Prometheus metrics. Counters are this process's since its start (add replicas up); gauges are read from the database
at each scrape and are the same at every replica.
"""

from datetime import datetime

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from shardtune.api_schemas.retuning.costs import CostReport
from shardtune.db.queries.gauges import Gauges

_COST = ["project", "cause", "month"]
_NEED = ["device", "gpu", "nodes", "gpus_per_node", "state"]


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

    def expired(self, count: int) -> None:
        """So many leases ran out."""
        self._expired.inc(count)

    def page(self, now: datetime, found: Gauges, spent: CostReport, waiting_requests: int, streams: int) -> bytes:
        """Everything in Prometheus' text format."""
        present = CollectorRegistry()
        oldest_s, answer_s = _age_s(found.oldest_waiting_at, now), _age_s(found.last_answer_at, now)
        _gauge(present, "lease_requests_waiting", "Lease requests held open by this process", waiting_requests)
        _gauge(present, "event_streams", "Event streams held open by this process", streams)
        _gauge(present, "workers_live", "Workers heard of lately", found.live_workers)
        for state, count in found.runs.items():
            _gauge(present, f"runs_{state.value}", f"Runs that are {state.value}", count)
        _gauge(present, "queue_age_seconds", "Age of the oldest run that waits for a worker", oldest_s)
        _gauge(present, "best_config_age_seconds", "Since a study last came to its answer", answer_s)
        waiting = found.waiting_deliveries
        _gauge(present, "webhook_deliveries_waiting", "Messages to webhooks not delivered yet", waiting)
        studies = Gauge("shardtune_studies", "Studies by state", ["state"], registry=present)
        for study_state, count in found.studies.items():
            studies.labels(study_state.value).set(count)
        needed = Gauge(
            "shardtune_demand", "Studies by what they run on, waiting for a worker or running", _NEED, registry=present
        )
        for (cluster, wanted), count in found.needed.items():
            needed.labels(cluster.device, cluster.gpu, cluster.nodes, cluster.gpus_per_node, wanted.value).inc(count)
        _costs(present, spent)
        return generate_latest(self._registry) + generate_latest(present)


def _costs(registry: CollectorRegistry, spent: CostReport) -> None:
    """The present month's grow; those before it are final."""
    seconds = Gauge(
        "shardtune_project_gpu_seconds", "Wall seconds × ranks by project, cause and month", _COST, registry=registry
    )
    for cost in spent.costs:
        seconds.labels(cost.project_id, cost.cause.value, cost.month).set(cost.gpu_seconds)
    if spent.price_per_gpu_hour is not None:
        price = Gauge("shardtune_price_per_gpu_hour", "As the operator set it", ["currency"], registry=registry)
        price.labels(spent.currency).set(spent.price_per_gpu_hour)


def _gauge(registry: CollectorRegistry, name: str, what: str, value: float) -> None:
    Gauge(f"shardtune_{name}", what, registry=registry).set(value)


def _age_s(moment: datetime | None, now: datetime) -> float:
    """0 where there is nothing."""
    return 0.0 if moment is None else max(0.0, (now - moment).total_seconds())
