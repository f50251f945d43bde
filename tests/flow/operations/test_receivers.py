"""Receivers that are slow, dead, deleted or not what they say: none costs another one its messages, and none is reached
that must not be.
"""

import asyncio
import ipaddress
import json
import ssl
import subprocess
import time
from contextlib import contextmanager, suppress
from datetime import UTC, datetime

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import event, text
from sqlalchemy.exc import OperationalError

from shardtune.db.session import Database
from shardtune.service.app import create_app
from shardtune.service.process.context import Context
from shardtune.service.process.dns_resolver import DnsResolver
from shardtune.service.process.public_addresses import is_public
from shardtune.service.settings import Settings
from shardtune.service.webhooks import deliveries
from shardtune.service.webhooks.send import DeliveryRules, Message, public_tls, send
from tests.support.processes.stack import until
from tests.support.service import webhook_deliveries
from tests.support.service.scenarios import bearer, create, make_key
from tests.support.service.simulated_worker import SPEC, SimulatedWorker
from tests.support.service.target_comparisons import confirming_request, projected_study, run_there
from tests.support.service.webhook_receivers import Receiver, dead_receiver

NOT_PUBLIC = [
    "127.0.0.1",
    "10.0.0.1",
    "172.16.0.1",
    "192.168.0.1",
    "169.254.169.254",
    "100.64.0.1",
    "100.100.100.200",
    "0.0.0.0",
    "224.0.0.1",
    "240.0.0.1",
    "255.255.255.255",
    "198.18.0.1",
    "192.0.2.1",
    "168.63.129.16",
    "192.0.0.192",
    "192.88.99.1",
    "::1",
    "::",
    "::10.0.0.1",
    "::8.8.8.8",
    "::ffff:169.254.169.254",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b:1::1",
    "64:ff9b:1::808:808",
    "fc00::1",
    "fd00:ec2::254",
    "fe80::1",
    "fec0::1",
    "ff02::1",
    "100::1",
    "2001:db8::1",
    "3fff::1",
    "5f00::1",
    "2001::1",
    "2001:0:a00:1::1",
    "2002:a00:1::1",
    "2606:4700::5efe:a00:1",
    "2606:4700::200:5efe:a00:1",
]
PUBLIC = ["8.8.8.8", "1.1.1.1", "2606:4700:4700::1111", "2001:4860:4860::8888", "::ffff:8.8.8.8", "64:ff9b::808:808"]
HOSTILE = [
    "file:///etc/passwd",
    "gopher://example.org/",
    "http://169.254.169.254/latest/meta-data/",
    "https://xn--/",
    "https://receiver.example:99999/",
    "https://receiver.example:0/",
    "http://127.0.0.1:8470/",
    "http://127.1/",
    "http://2130706433/",
    "http://0x7f000001/",
    "http://[::1]/",
    "http://user:password@example.org/",
    "http:///nothing",
]


@contextmanager
def opened(url, clock, poll_s):
    """A service whose operator allows private addresses, with a worker; what was written is due at once."""
    settings = Settings(
        database_url=url, sweep_s=3600, poll_s=poll_s, webhook_allow_private=True, secret_key="k" * 32, max_webhooks=2
    )
    context = Context(Database(url), settings, clock)
    clock.turn(10**9)
    with TestClient(
        create_app(context=context), base_url="http://127.0.0.1", client=("127.0.0.1", 1), raise_server_exceptions=False
    ) as client:
        SimulatedWorker(client).register()
        yield client, context


@pytest.fixture
def service(database_url, clock):
    """The test delivers itself."""
    with opened(database_url, clock, poll_s=3600) as actual_opened:
        yield actual_opened


@pytest.fixture
def receiver():
    actual_receiver = Receiver()
    yield actual_receiver
    actual_receiver.close()


def hook(client, url="http://127.0.0.1:9/", **headers):
    answer = client.post("/v1/webhooks", json={"url": url, "events": ["study.created"]}, headers=headers)
    assert answer.status_code == 201, answer.text
    return f"/v1/webhooks/{answer.json()['webhook_id']}"


def log_of(client, link):
    return client.get(f"{link}/deliveries").json()


def test_one_dead_receiver_delays_no_other(database_url, clock, receiver):
    """The service's own loop delivers: what comes later arrives while the first try of the dead one still waits."""
    with opened(database_url, clock, poll_s=0.05) as (client, _), dead_receiver() as url:
        dead = hook(client, url)
        hook(client, receiver.url)
        for count in (1, 2, 3):
            create(client)
            while len(receiver.got) < count:
                time.sleep(0.01)
        assert {(entry["state"], entry["error"]) for entry in log_of(client, dead)} == {("waiting", None)}


def test_the_services_own_loop_delivers_a_changed_answer_for_a_target(database_url, clock, receiver):
    with opened(database_url, clock, poll_s=0.05) as (client, _):
        created = client.post("/v1/webhooks", json={"url": receiver.url, "events": ["best.target_changed"]})
        assert created.status_code == 201, created.text
        projected = projected_study(client)
        run_there(client, confirming_request(client, projected), (800.0, 1000.0))
        until(lambda: receiver.got, 30, "the receiver has the message")
        ((_, body),) = receiver.got
        message = json.loads(body)
        assert (message["type"], message["data"]["verdict"]) == ("best.target_changed", "changed")
        assert message["data"]["study_id"] == projected["study_id"]


@pytest.mark.wide_on_postgres
def test_a_message_rejected_for_good_leaves_a_webhook_that_takes_others(service, receiver, clock):
    client, context = service
    link = hook(client, receiver.url)

    def deliver(status):
        receiver.status = status
        return webhook_deliveries.deliver(context)

    create(client)
    for _ in deliveries.RETRY_S:
        assert deliver(400) == 1
        clock.turn(2 * 24 * 3600)
    SimulatedWorker(client).register()
    clock.turn(-3 * 24 * 3600)
    create(client)
    assert deliver(204) == 1
    clock.turn(3 * 24 * 3600)
    assert deliver(400) == 1
    assert sorted(entry["state"] for entry in log_of(client, link)) == ["delivered", "failed"]
    assert client.get(link).json()["is_enabled"]


@pytest.fixture
def deleted_meanwhile(database_url, clock):
    """Right after a request has first read its webhook another one deletes it, if it is let."""
    other = Database(database_url)
    attempt = []

    def delete(_connection, _cursor, statement, *_):
        if "FROM webhooks" in statement and not attempt:
            attempt.append(statement)
            with suppress(OperationalError), other.engine.begin() as connection:
                connection.execute(text("SET LOCAL lock_timeout = '100ms'"))
                connection.execute(text("DELETE FROM webhooks"))

    with opened(database_url, clock, poll_s=3600) as (client, context):
        link = hook(client)
        event.listen(context.db.engine, "after_cursor_execute", delete)
        yield client, link
        event.remove(context.db.engine, "after_cursor_execute", delete)
    assert attempt
    other.close()


@pytest.mark.postgres
@pytest.mark.parametrize("database_url", ["postgres"], indirect=True)
@pytest.mark.parametrize("action", [":enable", ":disable", ":rotate", ":test", "study"])
def test_a_webhook_deleted_in_mid_request_fails_nothing(deleted_meanwhile, action):
    client, link = deleted_meanwhile
    if action == "study":
        assert client.post("/v1/studies", json=SPEC).status_code == 201
    else:
        answer = client.post(f"{link}{action}")
        assert answer.status_code in (200, 404), answer.text


def test_each_project_has_webhooks_of_its_own(quick_client):
    app = quick_client.app
    app.state.context = Context(
        app.state.context.db, app.state.context.settings.model_copy(update={"max_webhooks": 1}), app.state.context.now
    )
    admin = bearer(make_key(quick_client, "admin"))
    of_a, of_b = (bearer(make_key(quick_client, "admin", project=name, **admin)) for name in ("a", "b"))
    for headers in (of_a, of_b, admin):
        hook(quick_client, "https://example.org/hook", **headers)
        answer = quick_client.post("/v1/webhooks", json={"url": "https://example.org/hook"}, headers=headers)
        assert answer.json()["code"] == "too_many_webhooks"


@pytest.mark.parametrize("url", HOSTILE)
def test_hostile_addresses_are_rejected(quick_client, url):
    answer = quick_client.post("/v1/webhooks", json={"url": url})
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "url")
    assert "password" not in answer.json()["detail"].replace("a user and password", "")


def test_only_what_is_reachable_from_anywhere_is_public():
    reported = {item: is_public(ipaddress.ip_address(item)) for item in (*NOT_PUBLIC, *PUBLIC)}
    assert reported == dict.fromkeys(NOT_PUBLIC, False) | dict.fromkeys(PUBLIC, True)


class Names(DnsResolver):
    """A name server that says something else each time."""

    def __init__(self, *answers):
        super().__init__()
        self.answers = list(answers)

    async def addresses(self, host, port):
        return self.answers.pop(0)


def send_to(url, names, allow_private=False, tls=None):
    """Result of sending a message."""
    message = Message("msg_1", "webhook-1", None, url, (1,), "{}", 1)
    return asyncio.run(
        send(message, b"key", datetime.now(UTC), DeliveryRules(names, allow_private, tls or public_tls()))
    )


@pytest.mark.parametrize("answer", [["127.0.0.1"], ["8.8.8.8", "10.1.2.3"], ["::ffff:10.1.2.3"], ["64:ff9b:1::1"]])
def test_a_name_that_leads_to_a_private_address_is_not_followed_and_the_address_not_told(receiver, answer):
    result = send_to(f"http://hook.example:{receiver.port}/", Names(answer))
    assert result.status is None and "public addresses alone" in result.error
    assert not receiver.got and not any(item in result.error for item in answer)


def test_the_resolver_of_the_system_is_asked_and_believed_no_more_than_any_other(receiver):
    assert "public addresses alone" in send_to(f"http://localhost:{receiver.port}/", DnsResolver()).error
    assert send_to(f"http://localhost:{receiver.port}/", DnsResolver(), allow_private=True).is_success
    assert "cannot be resolved" in send_to("http://nowhere.invalid/", DnsResolver()).error


def test_a_name_that_changes_after_the_look_up_changes_nothing(receiver):
    elsewhere = Receiver("127.0.0.2", receiver.port)
    names = Names(["127.0.0.1"], ["127.0.0.2"])
    assert send_to(f"http://hook.example:{receiver.port}/", names, allow_private=True).is_success
    elsewhere.close()
    assert (len(receiver.got), len(elsewhere.got), names.answers) == (1, 0, [["127.0.0.2"]])
    assert receiver.got[0][0]["host"] == f"hook.example:{receiver.port}"


def test_a_certificate_counts_for_the_name_not_for_the_address(tmp_path):
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=hook.example"]
    command += ["-addext", "subjectAltName=DNS:hook.example", "-addext", "keyUsage=digitalSignature,keyCertSign"]
    subprocess.run([*command, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    own = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    own.load_cert_chain(certificate, key)
    receiver = Receiver(tls=own)
    trusting = ssl.create_default_context(cafile=str(certificate))
    for name, trusted, stated in (
        ("hook", trusting, None),
        ("other", trusting, "certificate"),
        ("hook", None, "certificate"),
    ):
        result = send_to(f"https://{name}.example:{receiver.port}/", Names(["127.0.0.1"]), True, trusted)
        assert result.is_success if stated is None else stated in result.error, result
    receiver.close()
    assert len(receiver.got) == 1


def test_an_error_names_no_address_of_the_network():
    for url in ("http://hook.example:1/", "https://hook.example:1/"):
        assert "127" not in send_to(url, Names(["127.0.0.1"]), allow_private=True).error
