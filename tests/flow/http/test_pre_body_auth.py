"""The door: a sender without a key costs nothing but the look at it, whatever it sends and however slowly."""

import asyncio
import contextlib
import itertools
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.flow.helpers.uvicorn_thread import heard, served
from tests.support.service.replica import Replica
from tests.support.service.scenarios import bearer, create, make_key
from tests.support.service.simulated_worker import SimulatedWorker

MIB = 1 << 20
JSON = {"content-type": "application/json"}
FORM = "Content-Type: application/x-www-form-urlencoded\r\n"


def head(path, length, extra="Content-Type: application/json\r\n"):
    """A request that announces a body and sends none of it."""
    return f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{extra}Content-Length: {length}\r\n\r\n"


@pytest.fixture
def guarded(sqlite_url):
    """A service with a key, and the headers that it wants."""
    with served(sqlite_url) as actual_served:
        yield actual_served, bearer(make_key(actual_served.client, "admin"))


@pytest.mark.parametrize(
    "path", ["/v1/studies", "/v1/runs/x/report", "/v1/workers", "/v1/none", "/new", "/settings/keys"]
)
def test_the_key_is_asked_for_before_a_byte_of_the_body(guarded, path):
    """The body never comes: whoever wanted to read it first would not answer."""
    service, _ = guarded
    assert service.say(head(path, 1000)).startswith(b"HTTP/1.1 401 ")
    assert service.say(head(path, 1000, FORM)).startswith(b"HTTP/1.1 401 ")


@pytest.mark.parametrize(("path", "kibibytes"), [("/v1/studies", 1024), ("/v1/keys", 64), ("/login", 8)])
def test_a_body_too_large_for_its_address_is_rejected_unread(guarded, path, kibibytes):
    service, headers = guarded
    key = f"Authorization: {headers['authorization']}\r\n"
    assert service.say(head(path, (kibibytes << 10) + 1, key)).startswith(b"HTTP/1.1 413 ")
    chunks = itertools.repeat(b" " * 4096, kibibytes // 4 + 1)
    answer = service.client.post(path, content=chunks, headers=headers | JSON)
    assert (answer.status_code, answer.json()["code"]) == (413, "content_too_large")
    assert service.client.post(path, content=b"{}", headers=headers | JSON).status_code not in (401, 413)


def test_a_body_of_too_many_values_is_not_parsed(guarded):
    service, headers = guarded
    for body in (b"[" * 60_000, b"1," * 60_000):
        answer = service.client.post("/v1/studies", content=body, headers=headers | JSON)
        assert (answer.status_code, "values" in answer.json()["detail"]) == (413, True)


def test_forms_are_read_by_pages_only(guarded):
    service, headers = guarded
    answer = service.client.post("/v1/studies", files={"a": b"x" * 1000}, headers=headers)
    assert answer.status_code == 422 and "application/json" in answer.json()["detail"]


@pytest.mark.parametrize(
    "stated",
    ["", "POST /v1/studies HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ", head("/v1/studies", 100) + "{"],
    ids=["silent", "slow head", "slow body"],
)
def test_a_request_that_does_not_arrive_ends_with_its_connection(sqlite_url, stated):
    with served(sqlite_url, request_receive_s=0.5) as service:
        assert service.say(stated) == b""
        with service.connect() as connection:
            for _ in range(3):
                connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
                assert b"HTTP/1.1 200 " in heard(connection), "who is not slow is kept"


def test_what_was_answered_before_its_end_is_not_waited_for(guarded):
    service, _ = guarded
    with service.connect() as connection:
        connection.sendall(head("/v1/studies", 1000).encode())
        join = b"".join(iter(lambda: heard(connection), b""))
        assert join.startswith(b"HTTP/1.1 401 ") and b"key_required" in join


def test_a_large_body_is_hardly_read_after_its_rejection_and_its_sender_still_reads_why(guarded):
    service, _ = guarded
    chunk, announced = bytes(MIB), 256 * MIB
    with service.connect() as connection:
        connection.sendall(head("/v1/studies", announced).encode())
        sent = 0
        with contextlib.suppress(ConnectionError):
            while sent < announced:
                sent += connection.send(chunk)
        answer = b"".join(iter(lambda: heard(connection), b""))
    assert answer.startswith(b"HTTP/1.1 401 ") and b"key_required" in answer
    assert sent < announced / 2, "32 MiB, and what the two kernels hold"
    for mebibytes in (2, 30):
        answer = service.client.post("/v1/studies", content=bytes(mebibytes * MIB), headers=JSON)
        assert answer.json()["code"] == "key_required"


def test_an_asynchronous_sender_reads_why_its_largest_body_was_rejected(guarded):
    """It reads nothing before it has sent everything."""
    service, _ = guarded

    async def codes():
        async with httpx.AsyncClient(base_url=service.client.base_url, trust_env=False) as http:
            answers = [await http.post("/v1/studies", content=bytes(30 * MIB), headers=JSON) for _ in range(2)]
        return [answer.json()["code"] for answer in answers]

    assert asyncio.run(codes()) == ["key_required"] * 2


def test_idle_connections_keep_nobody_out(sqlite_url):
    with served(sqlite_url, max_connections=64) as service, contextlib.ExitStack() as idle:
        first = idle.enter_context(service.connect())
        for _ in range(150):
            idle.enter_context(service.connect())
        assert service.client.get("/healthz").status_code == 200
        assert heard(first) == b"", "the oldest had to go"


@pytest.mark.timeout(120)
def test_a_stranger_s_requests_cost_a_fraction_of_a_user_s(sqlite_url, tmp_path):
    """Processor seconds of the service, for as many requests of each kind."""
    with Replica(sqlite_url, tmp_path / "service.log") as replica, contextlib.ExitStack() as clients:
        replica.wait_until_ready()
        http = clients.enter_context(httpx.Client(base_url=replica.url, timeout=60, trust_env=False))
        key = bearer(make_key(http, "admin"))
        worst = b'{"a":' * (8 * MIB // 5)
        form = b"&".join([b"a=%41"] * 30_000)

        def cost(send):
            before = replica.cpu_s()
            for _ in range(15):
                send()
            return replica.cpu_s() - before

        def stranger(path, body, kind, **headers):
            def send():
                with contextlib.suppress(httpx.TransportError):
                    assert http.post(path, content=body, headers={"content-type": kind} | headers).status_code == 401

            return send

        user = cost(lambda: http.get("/v1/studies", headers=key).raise_for_status())
        costs = {
            "8 MiB": cost(stranger("/v1/studies", worst, "application/json")),
            "8 MiB under a wrong key": cost(
                stranger("/v1/studies", worst, "application/json", authorization="Bearer x")
            ),
            "a form for the API": cost(stranger("/v1/studies", form, "application/x-www-form-urlencoded")),
            "a form for a page": cost(stranger("/new", form, "application/x-www-form-urlencoded")),
        }
        # What arrives before the answer is dropped unread, but the kernel's copy is counted, too.
        assert {name: cost for name, cost in costs.items() if cost > 3 * user + 0.2} == {}


def lines_until_the_end(stream):
    """The lines of a stream that ends; one that goes on past a hundred keep-alives does not."""
    lines = []
    for line in stream.iter_lines():
        lines.append(line)
        assert sum(line.startswith(":") for line in lines) < 100, lines
    return lines


def test_a_stream_ends_with_its_key(sqlite_url):
    with served(sqlite_url, stream_heartbeat_s=0.1, poll_s=0.05) as service:
        http = service.client
        SimulatedWorker(http).register()
        path = f"/v1/studies/{create(http)}"
        accept = {"accept": "text/event-stream"}
        with http.stream("GET", f"{path}/events", headers=accept) as of_nobody:
            admin = bearer(make_key(http, "admin"))
            assert lines_until_the_end(of_nobody)
        reader = make_key(http, "studies:read", **admin)
        with http.stream("GET", f"{path}/events", headers=bearer(reader) | accept) as stream:
            http.post(f"/v1/keys/{reader['key']['key_id']}:revoke", headers=admin).raise_for_status()
            assert "event: study.created" in lines_until_the_end(stream)
        assert http.get(f"{path}/events", headers=bearer(reader)).status_code == 401
        assert service.context.stream_limits.total == 0


def test_a_waiting_lease_request_ends_with_its_key(sqlite_url):
    with served(sqlite_url, poll_s=0.05) as service, ThreadPoolExecutor() as threads:
        admin = bearer(make_key(service.client, "admin"))
        key = make_key(service.client, "workers:lease", **admin)
        http = httpx.Client(base_url=service.client.base_url, headers=bearer(key), timeout=60, trust_env=False)
        worker = SimulatedWorker(http).register()
        submit = threads.submit(worker.lease, wait_s=30)
        while not service.context.work_signal.waiting_requests:
            time.sleep(0.01)
        service.client.headers = admin
        service.client.post(f"/v1/keys/{key['key']['key_id']}:revoke").raise_for_status()
        create(service.client)
        assert submit.result() is None, "nothing is given to whom the key was taken from"
        assert http.get("/v1/studies").status_code == 401
        http.close()


def test_streams_are_counted_by_key_and_one_project_leaves_half_of_them(sqlite_url):
    with served(sqlite_url, max_streams_per_client=2, max_streams=6) as service:
        http = service.client
        SimulatedWorker(http).register()
        path = f"/v1/studies/{create(http)}/events"
        admin = bearer(make_key(http, "admin"))
        first, other = (bearer(make_key(http, "studies:read", project="default", **admin)) for _ in range(2))
        stranger = bearer(make_key(http, "studies:read", **admin))
        accept = {"accept": "text/event-stream"}
        with contextlib.ExitStack() as exit_stack:
            for key in (first, first, other):
                answer = exit_stack.enter_context(http.stream("GET", path, headers=key | accept))
                assert answer.status_code == 200
            for key in (first, other):
                rejected = http.get(path, headers=key | accept)
                assert (rejected.status_code, rejected.json()["code"]) == (429, "too_many_streams")
            answer = exit_stack.enter_context(http.stream("GET", path, headers=stranger | accept))
            assert answer.status_code == 200, "what one project has taken up leaves half to others"
