"""A sender whose request is rejected reads why, whatever client it uses; and no bytes of a rejected request become
another request."""

import contextlib
import http.client
import logging
import re
import time
import urllib.error
import urllib.request

import httpx
import pytest

from tests.flow.helpers.uvicorn_thread import served
from tests.support.service.replica import Replica
from tests.support.service.scenarios import bearer, create, make_key
from tests.support.service.simulated_worker import SimulatedWorker

MIB = 1 << 20
JSON = {"content-type": "application/json"}
CHUNKED = "Transfer-Encoding: chunked\r\nContent-Type: application/json\r\n"


@pytest.fixture
def guarded(sqlite_url):
    """A service with a key, and the line of a request with it."""
    with served(sqlite_url) as actual_served:
        key = bearer(make_key(actual_served.client, "admin"))["authorization"]
        yield actual_served, f"Authorization: {key}\r\n"


def head(line, headers):
    return f"{line}\r\nHost: 127.0.0.1\r\n{headers}\r\n".encode()


def read_all(connection):
    """What comes until the connection ends."""
    received = b""
    with contextlib.suppress(ConnectionError, TimeoutError):
        while data := connection.recv(65536):
            received += data
    return received


def answers(received):
    """Status codes of these responses."""
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d+)", received)]


@pytest.mark.parametrize("size", [100_000, 900_000, 2 * MIB, 30 * MIB])
def test_a_client_that_closes_its_connection_afterwards_reads_why_its_body_was_rejected(guarded, size):
    """urllib does so with each request, and so do proxies that speak HTTP/1.0."""
    service, _ = guarded
    address = f"{service.client.base_url}/v1/studies"
    request = urllib.request.Request(address, data=bytes(size), headers=JSON)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    for _ in range(3):
        with pytest.raises(urllib.error.HTTPError) as rejected:
            opener.open(request, timeout=30)
        assert (rejected.value.code, b"key_required" in rejected.value.read()) == (401, True)
    with service.connect() as connection:
        connection.sendall(head("POST /v1/studies HTTP/1.0", f"Content-Length: {size}\r\n") + bytes(size))
        assert b"key_required" in read_all(connection)


def test_a_slow_sender_reads_why_its_body_was_rejected(guarded):
    """It has sent less than half of its body when the service stops to parse it, and reads once it has sent all."""
    service, _ = guarded
    client = http.client.HTTPConnection("127.0.0.1", service.port, timeout=30)
    client.putrequest("POST", "/v1/studies")
    client.putheader("Content-Length", "900000")
    client.endheaders()
    for _ in range(30):
        client.send(bytes(30_000))
        time.sleep(0.1)
    response = client.getresponse()
    assert (response.status, b"key_required" in response.read()) == (401, True)


def test_a_connection_whose_small_body_was_rejected_is_used_again(guarded):
    service, key = guarded
    with service.connect() as connection:
        connection.sendall(head("POST /v1/studies HTTP/1.1", "Content-Length: 900000\r\n") + bytes(900_000))
        first = connection.recv(65536)
        # Longer than the rest of a body is waited for.
        time.sleep(2.5)
        connection.sendall(head("GET /v1/studies HTTP/1.1", f"{key}Connection: close\r\n"))
        assert answers(first) + answers(read_all(connection)) == [401, 200]


def test_the_second_request_of_a_client_that_sends_two_at_once_arrives_in_peace(guarded):
    """The first response is complete while the second body, which is large and no gzip, arrives."""
    service, key = guarded
    octets = f"{key}Content-Type: application/octet-stream\r\nContent-Length: {2 * MIB}\r\nConnection: close\r\n"
    with service.connect() as connection:
        both = head("GET /v1/studies HTTP/1.1", key) + head("PUT /v1/runs/none/traces/0 HTTP/1.1", octets)
        connection.sendall(both + bytes(1000))
        first = connection.recv(65536)
        time.sleep(0.3)
        connection.sendall(bytes(2 * MIB - 1000))
        assert answers(first + read_all(connection)) == [200, 422]


@pytest.mark.parametrize("length", [2 * MIB, 100_000])
def test_no_request_within_a_rejected_body_is_answered(guarded, length):
    service, key = guarded
    hidden = head("GET /v1/keys HTTP/1.1", key) * 3
    for more in ("", "Connection: close\r\n"):
        with service.connect() as connection:
            connection.sendall(head("POST /v1/studies HTTP/1.1", f"Content-Length: {length}\r\n{more}") + hidden)
            assert answers(read_all(connection)) == [401]


@pytest.mark.parametrize("method", ["POST", "GET"])
def test_chunks_beside_a_length_are_no_request(guarded, method):
    """A proxy that believes the length would see another end of this request."""
    service, key = guarded
    hidden = head("GET /v1/keys HTTP/1.1", key)
    with service.connect() as connection:
        connection.sendall(head(f"{method} /v1/studies HTTP/1.1", f"Content-Length: 5\r\n{CHUNKED}"))
        connection.sendall(b"0\r\n\r\n" + hidden)
        received = read_all(connection)
    assert answers(received) == [400] and b"both Content-Length and Transfer-Encoding" in received


@pytest.mark.parametrize(
    ("sent", "says"),
    [
        (head(f"GET /?q={'a' * 100_000} HTTP/1.1", ""), "its line and headers exceed 65536 bytes"),
        (b"GET / HTTP/1.1\r\n\r\n", "Missing mandatory Host"),
        (b"\x16\x03\x01\x02\x00\x01\x00" + bytes(300), "illegal request line"),
    ],
)
def test_what_is_no_request_gets_an_answer_that_says_why(guarded, sent, says):
    service, _ = guarded
    with service.connect() as connection:
        connection.sendall(sent)
        received = read_all(connection)
    assert answers(received) == [400] and b"application/problem+json" in received
    assert says in received.decode(), received


def test_a_body_of_tiny_chunks_costs_a_stranger_little_and_ends_for_everybody(sqlite_url, tmp_path):
    """Each chunk is an event of the parser, however small it is."""
    with Replica(sqlite_url, tmp_path / "service.log") as replica:
        replica.wait_until_ready()
        port = int(replica.url.rpartition(":")[2])
        with httpx.Client(base_url=replica.url, trust_env=False) as http_client:
            key = bearer(make_key(http_client, "admin"))["authorization"]

        def send(headers):
            before_s = replica.cpu_s()
            with (
                contextlib.suppress(ConnectionError),
                http.client.socket.create_connection(("127.0.0.1", port), timeout=30) as connection,
            ):
                connection.sendall(head("POST /v1/studies HTTP/1.1", headers + CHUNKED))
                connection.sendall(b"1\r\n \r\n" * 40_000)
                received = read_all(connection)
            return received, replica.cpu_s() - before_s

        for _ in range(3):
            received, cpu_s = send("")
            assert answers(received) == [401] and cpu_s < 0.2
        received, cpu_s = send(f"Authorization: {key}\r\n")
        assert answers(received) == [400] and b"more than 20000 chunks" in received and cpu_s < 2


def test_nonsense_in_a_body_ends_its_connection_and_breaks_nothing(guarded, caplog):
    """Its response has begun already, so no other status can be sent."""
    service, key = guarded
    service.client.headers["authorization"] = key.partition(": ")[2].strip()
    SimulatedWorker(service.client).register()
    path = f"/v1/studies/{create(service.client)}/events"
    with caplog.at_level(logging.ERROR), service.connect() as connection:
        connection.sendall(head(f"GET {path} HTTP/1.1", f"{key}Transfer-Encoding: chunked\r\n"))
        first = connection.recv(65536)
        connection.sendall(b"nonsense\r\n")
        received = read_all(connection)
    assert answers(first + received) == [200]
    assert service.client.get("/healthz").status_code == 200
    assert caplog.records == []
