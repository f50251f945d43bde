"""Operations: metrics, backups, retention, an outage of the database."""

import sqlite3

import httpx
import pytest
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families

from shardtune.api_schemas.trials.failures import FailureKind
from shardtune.db.backup import backup
from shardtune.db.session import Database
from shardtune.service import retention
from shardtune.service.app import create_app
from shardtune.service.lifecycle import expiry
from shardtune.service.process.context import Context
from shardtune.service.settings import Settings
from tests.support.service.replica import Replica
from tests.support.service.simulated_worker import MODEL_SUMMARY, SPEC, SimulatedWorker, failure, measurement
from tests.support.service.webhook_receivers import receiver


def metrics(client):
    families = text_string_to_metric_families(client.get("/metrics").text)
    return {(s.name, *sorted(s.labels.values())): s.value for family in families for s in family.samples}


def test_metrics_count_what_happened(client, clock):
    worker = SimulatedWorker(client).register()
    client.post("/v1/studies", json=SPEC).raise_for_status()
    clock.turn(7)
    assert metrics(client)["shardtune_queue_age_seconds",] == 7
    worker.report(worker.lease(), MODEL_SUMMARY).raise_for_status()
    worker.report(worker.lease(), measurement(1000)).raise_for_status()
    worker.report(worker.lease(), failure(FailureKind.OOM)).raise_for_status()
    worker.lease()
    clock.turn(100)
    expiry.sweep(client.app.state.context)
    observed_metrics = metrics(client)
    assert observed_metrics["shardtune_attempts_ended_total", "complete", "search"] == 1
    assert observed_metrics["shardtune_attempts_ended_total", "oom", "search"] == 1
    assert observed_metrics["shardtune_attempts_ended_total", "search", "worker_lost"] == 1
    assert observed_metrics["shardtune_leases_expired_total",] == 1
    assert observed_metrics["shardtune_gpu_seconds_total", "model_summary"] == 6
    assert observed_metrics["shardtune_studies", "running"] == 1 and observed_metrics["shardtune_runs_waiting",] == 1
    assert observed_metrics["shardtune_best_config_age_seconds",] == 0


def test_old_events_and_logs_are_forgotten_and_measurements_never(client, clock):
    worker = SimulatedWorker(client).register()
    ended = client.post("/v1/studies", json=SPEC | {"budget": {"max_trials": 2}}).json()["study_id"]
    worker.report(worker.lease(), MODEL_SUMMARY, log_tail="profile said").raise_for_status()
    worker.report(worker.lease(), measurement(1000), log_tail="rank said").raise_for_status()
    worker.work()
    running = client.post("/v1/studies", json=SPEC, headers={"Idempotency-Key": "job"}).json()["study_id"]
    context = client.app.state.context
    assert not any(retention.delete_old(context).values())
    before = client.get(f"/v1/studies/{ended}/trials").json()["trials"]
    clock.turn(10**9)
    forgotten = retention.delete_old(context)
    assert forgotten["events"] > 10 and forgotten["log_tails"] == 2
    assert forgotten["idempotent_requests"] == 1
    after = client.get(f"/v1/studies/{ended}/trials").json()["trials"]
    for trial in before:
        for run in trial["runs"]:
            run["log_tail"] = None
    assert after == before
    assert client.get(f"/v1/studies/{ended}/events").json()["events"] == []
    assert client.get(f"/v1/studies/{running}/events").json()["events"] != []


def test_backup_of_a_database_in_use_is_whole(client, database_url, tmp_path):
    worker = SimulatedWorker(client).register()
    client.post("/v1/studies", json=SPEC).raise_for_status()
    worker.do(worker.lease())
    out = tmp_path / "backups" / "copy"
    assert backup(database_url, out) == out.stat().st_size > 0
    assert out.stat().st_mode & 0o077 == 0, "it holds hashes of keys"
    if database_url.startswith("sqlite"):
        copy = sqlite3.connect(out)
        assert copy.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert copy.execute("SELECT count(*) FROM runs").fetchone() == (1,)
        copy.close()
    else:
        assert out.read_bytes().startswith(b"PGDMP")
    with pytest.raises(ValueError, match="exists"):
        backup(database_url, out)


def test_database_that_is_away_answers_503(clock):
    settings = Settings(database_url="postgresql://nobody@127.0.0.1:1/none")
    app = create_app(context=Context(Database(settings.database_url), settings, clock))
    # Without its start, which would reject this database.
    answer = TestClient(app, raise_server_exceptions=False, base_url="http://127.0.0.1", client=("127.0.0.1", 1)).get(
        "/v1/studies"
    )
    assert (answer.status_code, answer.json()["code"]) == (503, "database_unreachable")
    assert int(answer.headers["retry-after"]) > 0 and "nobody" not in answer.text


def test_logs_have_no_addresses_that_are_secrets(sqlite_url, tmp_path):
    """A webhook's URL often is a secret."""
    log = tmp_path / "service.log"
    with receiver() as url, Replica(sqlite_url, log, log_level="DEBUG", webhook_allow_private=True) as replica:
        replica.wait_until_ready()
        with httpx.Client(base_url=replica.url, trust_env=False) as client:
            created = client.post("/v1/webhooks", json={"url": f"{url}/hunter2?token=hunter2"}).json()
            tested = client.post(f"/v1/webhooks/{created['webhook_id']}:test").json()
    assert tested["state"] == "delivered"
    assert "webhook created" in log.read_text() and "hunter2" not in log.read_text()
