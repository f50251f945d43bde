"""The real service over HTTP, in process, with a clock the test turns."""

import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
import uvicorn
from fastapi import FastAPI
from fastapi.testclient import TestClient

from shardtune.db.session import Database
from shardtune.service.app import create_app
from shardtune.service.cli import main
from shardtune.service.cli.processes import listening_socket
from shardtune.service.process.context import Context
from shardtune.service.settings import Settings
from tests.support.local_client import local_client
from tests.support.still_clock import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(scope="session")
def spare_apps() -> list[FastAPI]:
    """Applications that no service uses just now: FastAPI works out its 100 routes once per application, 0.2 s."""
    return []


@pytest.fixture
def open_service(clock: Clock, spare_apps: list[FastAPI]) -> Iterator[Callable[[str], TestClient]]:
    """Start a service on a database; the test sweeps expired leases and looks at fingerprints itself."""
    clients: list[TestClient] = []

    def open_one(url: str) -> TestClient:
        settings = Settings(database_url=url, sweep_s=3600, fingerprint_check_s=3600, retune_every_s=3600)
        app = spare_apps.pop() if spare_apps else create_app(settings, migrate=False)
        app.state.context = Context(Database(url), settings, clock)
        clients.append(local_client(app))
        return clients[-1].__enter__()

    yield open_one
    for client in clients:
        client.__exit__(None, None, None)
        spare_apps.append(client.app)


@pytest.fixture
def client(open_service: Callable[[str], TestClient], database_url: str) -> TestClient:
    """The service on each kind of database."""
    return open_service(database_url)


@pytest.fixture
def quick_client(open_service: Callable[[str], TestClient], sqlite_url: str) -> TestClient:
    """The service on SQLite, for rules that do not depend on the database."""
    return open_service(sqlite_url)


@pytest.fixture
def context(quick_client: TestClient) -> Context:
    """What stands behind `quick_client`."""
    return quick_client.app.state.context


@pytest.fixture
def http(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[httpx.Client]:
    """A client of the service that the commands find in the environment."""
    server = uvicorn.Server(uvicorn.Config(create_app(Settings(database_url=sqlite_url)), log_config=None))
    listener = listening_socket()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    monkeypatch.setenv("SHARDTUNE_SERVICE_URL", url)
    with httpx.Client(base_url=url, timeout=30) as client:
        yield client
    server.should_exit = True
    thread.join()
    listener.close()


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, Any]]:
    """A command's exit code, and its output as JSON where it has any."""

    def run_one(*arguments: str, as_json: bool = True) -> tuple[int, Any]:
        with pytest.raises(SystemExit) as ended:
            main([*arguments, *(["--json"] if as_json else [])])
        captured = capsys.readouterr()
        text = captured.out if ended.value.code in (0, None) else captured.err
        return int(ended.value.code or 0), json.loads(text) if as_json and captured.out else text

    return run_one
