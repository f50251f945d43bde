"""Webhooks: signed, retried, given up, and never sent where they must not go."""

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from fastapi.testclient import TestClient
from standardwebhooks import Webhook, WebhookVerificationError

from shardtune.db.session import Database
from shardtune.service.app import create_app
from shardtune.service.best import watch_staleness
from shardtune.service.process.context import Context
from shardtune.service.process.dns_resolver import DnsResolver
from shardtune.service.settings import Settings
from shardtune.service.webhooks import deliveries, manage
from tests.support.service.scenarios import in_threads
from tests.support.service.simulated_worker import FINGERPRINT, SPEC, SimulatedWorker
from tests.support.service.webhook_deliveries import deliver
from tests.support.service.webhook_receivers import Receiver

EXAMPLE = Path(__file__).parents[3] / "examples" / "receive_webhooks.py"


@pytest.fixture
def receiver():
    opened = Receiver()
    yield opened
    opened.close()


@pytest.fixture
def service(database_url, spare_app, clock):
    """A service whose operator allows private addresses; the test delivers itself."""
    settings = Settings(
        database_url=database_url, sweep_s=3600, poll_s=3600, webhook_allow_private=True, secret_key="k" * 32
    )
    spare_app.state.context = context = Context(Database(database_url), settings, clock)
    with TestClient(spare_app, base_url="http://127.0.0.1", client=("127.0.0.1", 1)) as client:
        yield client, context


def hook(client, receiver, **spec):
    answer = client.post("/v1/webhooks", json={"url": receiver.url, "events": []} | spec)
    assert answer.status_code == 201, answer.text
    return answer.json()


def study(client):
    worker = SimulatedWorker(client).register()
    return client.post("/v1/studies", json=SPEC).json()["study_id"], worker


def test_events_are_delivered_signed_once_each(service, receiver, clock):
    client, context = service
    created = hook(client, receiver, events=["study.created", "run.leased"])
    study_id, worker = study(client)
    worker.do(worker.lease())
    clock.turn(10**9)
    while deliver(context):
        pass
    assert deliver(context) == 0
    reported = [json.loads(body) for _, body in receiver.got]
    assert sorted(entry["type"] for entry in reported) == ["run.leased", "study.created"]
    assert {entry["data"]["study_id"] for entry in reported} == {study_id}
    assert all(set(entry) == {"type", "timestamp", "data"} for entry in reported)
    log = client.get(f"/v1/webhooks/{created['webhook_id']}/deliveries").json()
    assert {(entry["state"], entry["tries"], entry["status"]) for entry in log} == {("delivered", 1, 204)}
    assert {entry["delivery_id"] for entry in log} == {headers["webhook-id"] for headers, _ in receiver.got}


def test_signature_verifies_with_the_secret_and_with_no_other(receiver, sqlite_url):
    settings = Settings(database_url=sqlite_url, webhook_allow_private=True)
    with TestClient(create_app(settings), base_url="http://127.0.0.1", client=("127.0.0.1", 1)) as client:
        first = hook(client, receiver)
        other = hook(client, receiver)
        assert "secret" not in client.get(f"/v1/webhooks/{first['webhook_id']}").json()
        assert client.post(f"/v1/webhooks/{first['webhook_id']}:test").json()["state"] == "delivered"
        headers, body = receiver.got[-1]
        assert Webhook(first["secret"]).verify(body, headers)["type"] == "webhook.test"
        with pytest.raises(WebhookVerificationError):
            Webhook(other["secret"]).verify(body, headers)
        rotated = client.post(f"/v1/webhooks/{first['webhook_id']}:rotate").json()
        client.post(f"/v1/webhooks/{first['webhook_id']}:test").raise_for_status()
        headers, body = receiver.got[-1]
        for secret in (first["secret"], rotated["secret"]):
            Webhook(secret).verify(body, headers)
        folder = Path(sqlite_url.removeprefix("sqlite:///")).parent
        # The key that everything is derived from lies beside the database, for its owner only.
        key = next(path for path in folder.glob("*.key"))
        assert key.stat().st_mode & 0o077 == 0
        stored = b"".join(path.read_bytes() for path in folder.glob("*.sqlite3*") if path != key)
        assert first["secret"].removeprefix("whsec_").encode() not in stored


@pytest.mark.wide_on_postgres
def test_failed_deliveries_are_retried_then_given_up(service, receiver, clock):
    client, context = service
    created = hook(client, receiver, events=["study.created"])
    receiver.status = 302
    study(client)
    clock.turn(10**9)
    for tries in range(1, len(deliveries.RETRY_S) + 2):
        assert deliver(context) == 1 and deliver(context) == 0
        (entry,) = client.get(f"/v1/webhooks/{created['webhook_id']}/deliveries").json()
        assert (entry["tries"], entry["status"]) == (tries, 302)
        clock.turn(2 * 24 * 3600)
    assert entry["state"] == "failed" and len({headers["webhook-id"] for headers, _ in receiver.got}) == 1
    disabled = client.get(f"/v1/webhooks/{created['webhook_id']}").json()
    assert not disabled["is_enabled"] and "302" in disabled["disabled_reason"]
    study(client)
    assert deliver(context) == 0
    assert client.post(f"/v1/webhooks/{created['webhook_id']}:enable").json()["is_enabled"]


@pytest.mark.wide_on_postgres
def test_gone_disables_at_once(service, receiver, clock):
    client, context = service
    created = hook(client, receiver, events=["study.created"])
    receiver.status = 410
    study(client)
    clock.turn(10**9)
    deliver(context)
    assert not client.get(f"/v1/webhooks/{created['webhook_id']}").json()["is_enabled"]


def test_a_killed_sender_is_followed_by_another(service, receiver, clock):
    client, context = service
    hook(client, receiver, events=["study.created"])
    study(client)
    clock.turn(10**9)
    assert len(deliveries.claim_due(context, deliveries.DeliveriesInFlight())) == 1
    assert deliver(context) == 0
    clock.turn(61)
    assert deliver(context) == 1 and len(receiver.got) == 1


def test_many_that_create_at_once_get_no_more_webhooks_than_are_allowed(service, receiver):
    client, context = service
    settings = context.settings.model_copy(update={"max_webhooks": 2})
    client.app.state.context = replace(context, settings=settings)
    in_threads(lambda _: client.post("/v1/webhooks", json={"url": receiver.url, "events": []}), range(6))
    assert len(client.get("/v1/webhooks").json()) == 2


class _Killed(BaseException):
    """End of a process in the middle of its work."""


class _KillingResolver(DnsResolver):
    """Resolver whose process is killed as it looks a name up."""

    async def addresses(self, _host: str, _port: int) -> list[str]:
        raise _Killed


def test_a_test_message_of_a_killed_sender_fails_and_is_not_repeated(service, receiver, clock):
    client, context = service
    webhook_id = hook(client, receiver, url=f"http://localhost:{receiver.port}/hook")["webhook_id"]
    with pytest.raises(_Killed):
        asyncio.run(manage.send_test(replace(context, dns_resolver=_KillingResolver()), webhook_id))
    clock.turn(30)
    assert deliver(context) == 0 and deliveries_of(client, webhook_id)[0]["state"] == "waiting"
    clock.turn(31)
    assert deliver(context) == 0 and receiver.got == []
    (message,) = deliveries_of(client, webhook_id)
    assert (message["state"], message["tries"]) == ("failed", 1) and "send another test" in message["error"]


def deliveries_of(client, webhook_id):
    return client.get(f"/v1/webhooks/{webhook_id}/deliveries").json()


def test_postgres_without_a_key_says_what_to_set(postgres_url_client, receiver):
    answer = postgres_url_client.post("/v1/webhooks", json={"url": "https://example.org/hook"})
    assert answer.status_code == 409 and "SHARDTUNE_SECRET_KEY" in answer.json()["detail"]


@pytest.fixture
def postgres_url_client(open_service, postgres_server, postgres_template):
    return open_service(postgres_server.format(name=postgres_template))


def test_unknown_type_of_event_is_rejected(quick_client):
    answer = quick_client.post("/v1/webhooks", json={"url": "https://example.org", "events": ["study.nope"]})
    assert answer.status_code == 422 and "study.complete" in answer.json()["detail"]


@pytest.mark.wide_on_postgres
def test_a_stale_recommendation_is_told_once_with_what_changed(service, receiver, clock):
    client, context = service
    hook(client, receiver, events=["best.stale"])
    study_id, worker = study(client)
    worker.work()
    changed = SimulatedWorker(client, fingerprint=FINGERPRINT.model_copy(update={"kernel": "6.6"})).register()
    for _ in range(8):
        watch_staleness.mark_stale_and_fresh(context)
        clock.turn(60)
        changed.lease()
    deliver(context)
    ((_, body),) = receiver.got
    message = json.loads(body)
    assert (message["type"], message["data"]["study_id"]) == ("best.stale", study_id)
    assert message["data"]["changes"] == [{"field": "kernel", "was": "6.1", "now": "6.6", "effect": "stale"}]


def test_the_documented_receiver_takes_what_is_genuine_and_nothing_else(sqlite_url):
    settings = Settings(database_url=sqlite_url, webhook_allow_private=True)
    with TestClient(create_app(settings), base_url="http://127.0.0.1", client=("127.0.0.1", 1)) as client:
        port = free_port()
        created = client.post("/v1/webhooks", json={"url": f"http://127.0.0.1:{port}/"}).json()
        test = f"/v1/webhooks/{created['webhook_id']}:test"
        with documented_receiver(created["secret"], port) as process:
            assert client.post(test).json()["status"] == 204
            assert json.loads(process.stdout.readline())["type"] == "webhook.test"
            client.post(f"/v1/webhooks/{created['webhook_id']}:rotate").raise_for_status()
            assert client.post(test).json()["status"] == 204, "the former secret signs, too"
            now = datetime.now(UTC)
            fresh, old = signed(created["secret"], now), signed(created["secret"], now - timedelta(minutes=6))
            forged = [old, signed("whsec_b3RoZXI=", now), fresh | {"webhook-id": "other"}, {}]
            answers = [httpx.post(created["url"], content="{}", headers=inputs) for inputs in [*forged, fresh, fresh]]
            assert [answer.status_code for answer in answers] == [400, 400, 400, 400, 204, 204]


def signed(secret, at):
    """The headers of an empty message."""
    signature = Webhook(secret).sign("msg_1", at, "{}")
    return {"webhook-id": "msg_1", "webhook-timestamp": str(int(at.timestamp())), "webhook-signature": signature}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def documented_receiver(secret, port):
    """The example as a process that listens."""
    environment = {**os.environ, "SHARDTUNE_WEBHOOK_SECRET": secret}
    command = [sys.executable, str(EXAMPLE), str(port)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            for _ in range(300):
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.1)
            yield process
        finally:
            process.kill()
