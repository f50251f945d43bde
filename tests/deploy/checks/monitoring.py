"""Prometheus' configuration and alert rules, Grafana's dashboard: by promtool, and by the metrics there really are."""

import json
import re
import tempfile
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import yaml
from prometheus_client.parser import text_string_to_metric_families

from shardtune.api_schemas.retuning.costs import CostReport
from shardtune.api_schemas.studies.study_state import StudyState
from shardtune.api_schemas.trials.trial import OPEN_TRIAL_STATES, AttemptEnd, RunPurpose
from shardtune.db.queries.gauges import Gauges
from shardtune.service.observability.metrics import Metrics
from tests.deploy.checks.programs import failures

_METRIC = re.compile(r"\bshardtune_\w+")
_END = re.compile(r'\bend="(\w+)"')


def prometheus(deploy: Path) -> list[str]:
    """Configuration and rules are Prometheus', and the rules do what their tests say."""
    folder = deploy / "monitoring"
    return [
        *failures(["promtool", "check", "config", "--syntax-only", "prometheus.yml"], folder),
        *failures(["promtool", "check", "rules", "alerts.yml"], folder),
        *failures(["promtool", "test", "rules", "alerts.test.yml"], folder),
    ]


def dashboard(deploy: Path) -> list[str]:
    """Each query of the dashboard is one of Prometheus', by making a rule of it."""
    queries = list(_queries(deploy))
    rules = [{"record": f"panel:{number}", "expr": query} for number, query in enumerate(queries)]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "rules.yml").write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))
        return failures(["promtool", "check", "rules", "rules.yml"], Path(folder)) if queries else ["no queries"]


def metrics(deploy: Path) -> list[str]:
    """Check that the service exports every metric that dashboard and alerts query."""
    alerts = yaml.safe_load((deploy / "monitoring/alerts.yml").read_text())
    requested = [*_queries(deploy), *(rule["expr"] for group in alerts["groups"] for rule in group["rules"])]
    exported_metrics = _exported_metrics()
    ends = {end.value for end in AttemptEnd}
    return [
        f"{name}: the service tells no such metric"
        for query in requested
        for name in _METRIC.findall(query)
        if name not in exported_metrics
    ] + [f"end={end}: no attempt ends so" for query in requested for end in _END.findall(query) if end not in ends]


def _queries(deploy: Path) -> Iterator[str]:
    for path in sorted((deploy / "monitoring/grafana/dashboards").glob("*.json")):
        for panel in json.loads(path.read_text())["panels"]:
            yield from (target["expr"] for target in panel["targets"])


def _exported_metrics() -> set[str]:
    counted = Metrics()
    counted.count_grant(RunPurpose.SEARCH)
    counted.count_end(RunPurpose.SEARCH, AttemptEnd.COMPLETE, 1.0)
    now = datetime.now(UTC)
    gauges = Gauges(1, dict.fromkeys(OPEN_TRIAL_STATES, 0), None, None, 0, {StudyState.RUNNING: 1}, Counter())
    spent = CostReport(currency="USD", costs=())
    page = counted.render(now, gauges, spent, waiting_requests=0, streams=0).decode()
    return {sample.name for family in text_string_to_metric_families(page) for sample in family.samples}
