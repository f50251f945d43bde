"""Prometheus metrics.

Counters belong to this process and start at its start (sum over replicas); gauges are read from the database at each
scrape and are equal at every replica.
"""

from datetime import datetime

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from shardtune.api_schemas.retuning.costs import CostReport
from shardtune.db.queries.gauges import Gauges

_COST = ["project", "cause", "month"]
_NEED = ["device", "gpu", "nodes", "gpus_per_node", "state"]


class Metrics:
    """Prometheus counters of one service process."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._ended = Counter(
            "shardtune_attempts_ended", "Attempts by their end", ["purpose", "end"], registry=self._registry
        )
        self._gpu_seconds = Counter(
            "shardtune_gpu_seconds", "Seconds × ranks of ended attempts", ["purpose"], registry=self._registry
        )
        self._expired = Counter(
            "shardtune_leases_expired", "Leases that expired because their worker was silent", registry=self._registry
        )
        self._granted = Counter("shardtune_leases_granted", "Leases granted", ["purpose"], registry=self._registry)

    def count_grant(self, purpose: str) -> None:
        """Count a lease that was granted to a worker."""
        self._granted.labels(purpose).inc()

    def count_end(self, purpose: str, end: str, gpu_seconds: float) -> None:
        """Count an attempt at a run after its end has been stored."""
        self._ended.labels(purpose, end).inc()
        self._gpu_seconds.labels(purpose).inc(gpu_seconds)

    def count_expired(self, count: int) -> None:
        """Count leases that expired because their workers stopped sending heartbeats."""
        self._expired.inc(count)

    def render(self, now: datetime, gauges: Gauges, spent: CostReport, waiting_requests: int, streams: int) -> bytes:
        """Render all metrics in Prometheus' text format."""
        # A registry per scrape: gauges of projects and clusters that are gone must not keep their last value.
        present = CollectorRegistry()
        oldest_s, answer_s = _age_s(gauges.oldest_waiting_at, now), _age_s(gauges.last_answer_at, now)
        _gauge(present, "lease_requests_waiting", "Lease requests held open by this process", waiting_requests)
        _gauge(present, "event_streams", "Event streams held open by this process", streams)
        _gauge(present, "workers_live", "Workers that sent a request recently", gauges.live_workers)
        for state, count in gauges.runs.items():
            _gauge(present, f"runs_{state.value}", f"Runs that are {state.value}", count)
        _gauge(present, "queue_age_seconds", "Age of the oldest run that waits for a worker", oldest_s)
        _gauge(present, "best_config_age_seconds", "Seconds since a study last completed", answer_s)
        waiting = gauges.waiting_deliveries
        _gauge(present, "webhook_deliveries_waiting", "Webhook messages that are not delivered yet", waiting)
        studies = Gauge("shardtune_studies", "Studies by state", ["state"], registry=present)
        for study_state, count in gauges.studies.items():
            studies.labels(study_state.value).set(count)
        needed = Gauge(
            "shardtune_demand", "Studies by hardware, waiting for a worker or running", _NEED, registry=present
        )
        for (cluster, study_need), count in gauges.needed.items():
            needed.labels(cluster.device, cluster.gpu, cluster.nodes, cluster.gpus_per_node, study_need.value).inc(
                count
            )
        _costs(present, spent)
        return generate_latest(self._registry) + generate_latest(present)


def _costs(registry: CollectorRegistry, spent: CostReport) -> None:
    """Add one gauge of costs for each month to the metrics. The values of the present month grow, those of earlier
    months are final.
    """
    seconds = Gauge(
        "shardtune_project_gpu_seconds", "Seconds × ranks by project, cause and month", _COST, registry=registry
    )
    for cost in spent.costs:
        seconds.labels(cost.project_id, cost.cause.value, cost.month).set(cost.gpu_seconds)
    if spent.price_per_gpu_hour is not None:
        price = Gauge(
            "shardtune_price_per_gpu_hour",
            "Price of one GPU for an hour, as the operator set it",
            ["currency"],
            registry=registry,
        )
        price.labels(spent.currency).set(spent.price_per_gpu_hour)


def _gauge(registry: CollectorRegistry, name: str, help_text: str, value: float) -> None:
    Gauge(f"shardtune_{name}", help_text, registry=registry).set(value)


def _age_s(moment: datetime | None, now: datetime) -> float:
    """Age of a moment in seconds; 0 if there is no moment."""
    return 0.0 if moment is None else max(0.0, (now - moment).total_seconds())
