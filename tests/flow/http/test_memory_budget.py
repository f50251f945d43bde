"""Memory of a replica: no sender's bodies or unread responses use it up, and the others are served meanwhile."""

import contextlib
import os
import socket

import psutil
import pytest

from shardtune.api_schemas.trials.leases import TASK_KINDS
from tests.flow.helpers.uvicorn_thread import heard, served
from tests.support.processes.stack import until
from tests.support.service.scenarios import bearer, make_key
from tests.support.service.simulated_worker import SPEC, SimulatedWorker, diagnosis

MIB = 1 << 20
TRACE = "/v1/runs/none/traces/0"
BYTES = "application/octet-stream"
CONTENT = b"\x1f\x8b" + os.urandom(16 * MIB - 2)


@pytest.fixture
def keyed(sqlite_url):
    """A service, and the headers of an administrator, of a reader, and of two projects' workers."""
    with served(sqlite_url) as service:
        admin = bearer(make_key(service.client, "admin"))
        keys = {"admin": admin, "reader": bearer(make_key(service.client, "configs:read", **admin))}
        for project in ("a", "b"):
            service.client.put(f"/v1/projects/{project}", json={}, headers=admin)
            keys[project] = bearer(make_key(service.client, "workers:lease", project=project, **admin))
            # Known from now on as requests of this project.
            service.client.post("/v1/leases", json={}, headers=keys[project])
        yield service, keys


def head(key, kind, length, path=TRACE, method="PUT"):
    return (
        f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: {key['authorization']}\r\nContent-Type: {kind}\r\n"
        f"Shardtune-Session: s\r\nShardtune-Attempt: 1\r\nContent-Length: {length}\r\n\r\n"
    )


def status(answer: bytes) -> str:
    return answer.split(b" ")[1].decode()


def test_a_key_without_the_scope_is_rejected_before_a_byte_of_the_body(keyed):
    service, keys = keyed
    for kind in ("application/json", BYTES):
        assert status(service.say(head(keys["reader"], kind, 31 * MIB))) == "403"
    for path in ("/v1/studies", "/v1/workers", "/v1/keys", "/v1/runs/x/report"):
        assert status(service.say(head(keys["reader"], "application/json", 1000, path, "POST"))) == "403", path


@pytest.mark.parametrize(
    "kind", ["application/json", "text/json; charset=utf-8", "multipart/form-data; boundary=x", ""]
)
def test_the_address_of_a_trace_reads_bytes_only(keyed, kind):
    service, keys = keyed
    assert status(service.say(head(keys["a"], kind, MIB))) == "415"
    answer = service.client.put(TRACE, content=b"[NaN]", headers=keys["a"] | {"content-type": kind or "x"})
    assert (answer.status_code, answer.json()["code"]) == (415, "unsupported_media_type")
    assert f"must be {BYTES}" in answer.json()["detail"]


def test_unfinished_uploads_of_one_sender_leave_room_for_the_others(keyed):
    service, keys = keyed
    with contextlib.ExitStack() as stack:
        uploads = [stack.enter_context(service.connect()) for _ in range(6)]
        for upload in uploads:
            upload.sendall(head(keys["a"], BYTES, 16 * MIB).encode())
        answers = [answer for upload in uploads if (answer := _heard_soon(upload))]
        # Two traces are half of the budget; the others are told to wait.
        assert [status(answer) for answer in answers] == ["429"] * 4
        assert all(b"retry-after: 5" in answer.lower() for answer in answers)
        beside = stack.enter_context(service.connect())
        beside.sendall(head(keys["b"], BYTES, 10 * MIB).encode())
        assert _heard_soon(beside) == b"", "the other project's upload is taken"
        # A project's own requests of workers are not displaced by its uploads.
        assert service.client.post("/v1/leases", json={}, headers=keys["a"]).status_code == 422
    until(
        lambda: service.client.put(TRACE, content=CONTENT, headers=_upload(keys["a"])).status_code in (404, 409),
        30,
        "uploads whose senders are gone hold nothing",
    )


def test_readers_that_do_not_read_hold_pieces_and_close_the_service_to_nobody_else(keyed):
    service, keys = keyed
    service.client.headers.update(keys["admin"])
    worker = SimulatedWorker(service.client, task_kinds=TASK_KINDS).register()
    study = service.client.post("/v1/studies", json=SPEC | {"budget": {"max_trials": 2, "max_pairs": 7}})
    path = f"/v1/studies/{study.json()['study_id']}/trials/1"
    worker.work()
    service.client.post(f"{path}:diagnose").raise_for_status()
    lease = worker.lease()
    assert worker.send_trace(lease, 0, CONTENT).status_code == 204
    worker.report(lease, diagnosis()).raise_for_status()
    before = psutil.Process().memory_info().rss
    with contextlib.ExitStack() as stack:
        for _ in range(20):
            reader = stack.enter_context(socket.socket())
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            reader.connect(("127.0.0.1", service.port))
            reader.sendall(
                f"GET {path}/trace HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: {keys['admin']['authorization']}\r\n\r\n".encode()
            )
            assert status(heard(reader)) == "200"
        assert psutil.Process().memory_info().rss < before + 64 * MIB, "a fifth of what they asked for"
        assert service.client.get(f"{path}/trace").content == CONTENT


def _upload(key):
    return key | {"content-type": BYTES, "shardtune-session": "s", "shardtune-attempt": "1"}


def _heard_soon(connection: socket.socket) -> bytes:
    """The answer's head, or nothing where the service waits for the body."""
    connection.settimeout(1)
    with contextlib.suppress(TimeoutError):
        return connection.recv(65536)
    return b""
