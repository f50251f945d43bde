"""A service without keys accepts this machine alone, nothing that came through a proxy or from another site, or nothing
at all."""

import json
import os
import re
import socket
from pathlib import Path

from shardtune.service.process.context import Context
from tests.flow.helpers.uvicorn_thread import heard, served
from tests.support.processes import other_user
from tests.support.service.local_client import local_client
from tests.support.service.page_reader import HTML
from tests.support.service.scenarios import bearer, make_key

DEPLOY = Path(__file__).parents[3] / "deploy"
FOREIGN = [
    {"forwarded": "for=10.0.0.7"},
    {"x-forwarded-for": "127.0.0.1"},
    {"x-forwarded-proto": "https"},
    {"x-forwarded-host": "tune.example"},
    {"x-real-ip": "127.0.0.1"},
    {"via": "1.1 proxy"},
    {"origin": "https://evil.example"},
    {"origin": "http://127.0.0.1:3000"},
    {"origin": "null"},
    {"sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "same-site"},
    {"host": "evil.example"},
]
OWN = [{"origin": "http://127.0.0.1"}, {"sec-fetch-site": "same-origin"}, {"sec-fetch-site": "none"}]


def test_what_comes_through_a_proxy_or_from_another_site_is_rejected(quick_client):
    for headers in FOREIGN:
        rejected(quick_client, headers)
    for headers in OWN:
        assert quick_client.get("/v1/studies", headers=headers).status_code == 200
        assert quick_client.get("/studies", headers=HTML | headers).status_code == 200


def rejected(quick_client, headers):
    for method, path in [
        ("GET", "/v1/studies"),
        ("POST", "/v1/studies/x:cancel"),
        ("POST", "/v1/keys"),
        ("GET", "/metrics"),
    ]:
        answer = quick_client.request(method, path, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (403, "local_only"), (method, path)
        assert "shardtune keys create" in answer.json()["detail"]
    for method, path in [("GET", "/studies"), ("POST", "/settings/keys"), ("POST", "/new")]:
        assert quick_client.request(method, path, headers=HTML | headers).status_code == 403, (method, path)
    assert quick_client.get("/healthz", headers=headers).status_code == 200


def test_http_1_0_which_nginx_speaks_unasked_is_rejected(sqlite_url):
    """nginx by default sends a Host header of its own making and no proxy header."""
    with served(sqlite_url) as service:
        requested = f"GET /v1/studies HTTP/1.0\r\nHost: 127.0.0.1:{service.port}\r\nConnection: close\r\n\r\n"
        assert service.say(requested).startswith(b"HTTP/1.1 403 ")
        assert service.say(requested.replace("/1.0", "/1.1")).startswith(b"HTTP/1.1 200 ")


def response_to_other_user(service, request):
    """Response to a request that a program of another user sends."""
    response_read, response_write = os.pipe()

    def ask():
        with socket.create_connection(("127.0.0.1", service.port)) as connection:
            connection.sendall(request.encode())
            os.write(response_write, heard(connection))

    with other_user.acting(ask):
        response = os.read(response_read, 65536)
    os.close(response_read)
    os.close(response_write)
    return response


def test_another_user_of_the_machine_is_rejected_without_keys_and_accepted_with_one(sqlite_url):
    with served(sqlite_url) as service:
        head = f"Host: 127.0.0.1:{service.port}\r\nConnection: close\r\n"
        for path, accept in (("/v1/studies", "application/json"), ("/studies", "text/html")):
            request = f"GET {path} HTTP/1.1\r\nAccept: {accept}\r\n{head}"
            assert response_to_other_user(service, f"{request}\r\n").startswith(b"HTTP/1.1 403 "), path
            assert service.say(f"{request}\r\n").startswith(b"HTTP/1.1 200 "), path
        key = make_key(service.client, "studies:read")
        request = f"GET /v1/studies HTTP/1.1\r\nAuthorization: Bearer {key['secret']}\r\n{head}\r\n"
        assert response_to_other_user(service, request).startswith(b"HTTP/1.1 200 ")


def test_with_keys_a_proxy_is_welcome(quick_client):
    admin = bearer(make_key(quick_client, "admin"))
    for headers in FOREIGN:
        assert quick_client.get("/v1/studies", headers=admin | headers).status_code == 200, headers


def test_where_keys_are_required_nothing_is_served_before_the_first(quick_client, run, tmp_path, monkeypatch):
    context = quick_client.app.state.context
    settings = context.settings.model_copy(update={"require_keys": True})
    quick_client.app.state.context = Context(context.db, settings, context.now)
    client = local_client(quick_client.app)
    for method, path in [("GET", "/v1/studies"), ("POST", "/v1/keys"), ("GET", "/metrics")]:
        answer = client.request(method, path)
        assert (answer.status_code, answer.json()["code"]) == (401, "key_required")
        assert "shardtune keys create" in answer.json()["detail"]
    assert client.get("/studies", headers=HTML, follow_redirects=False).headers["location"].startswith("/login")
    assert client.get("/healthz").status_code == client.get("/readyz").status_code == 200
    monkeypatch.setenv("SHARDTUNE_DATABASE_URL", settings.database_url)
    code, created = run("keys", "create", "--name", "first", "--scope", "admin", "--all-projects")
    assert code == 0 and client.get("/v1/studies", headers=bearer(created)).status_code == 200


def test_every_deployment_requires_keys():
    """Every program in deploy/ that starts the service sets the option."""
    starting = [path for path in DEPLOY.rglob("*") if path.is_file() and re.search(r"\bserve\b", path.read_text())]
    starting = [path for path in starting if path.suffix != ".md"]
    assert starting
    assert [
        path.name
        for path in starting
        if not re.search(r"SHARDTUNE_REQUIRE_KEYS\W+(value\W+)?(true|1)\b", path.read_text())
    ] == []


def test_the_openapi_document_names_the_rejection(quick_client):
    described = json.dumps(quick_client.get("/openapi.json").json()["paths"]["/v1/studies"]["get"]["responses"]["403"])
    assert "local_only" in described
