"""The real service over HTTP, in process, with a clock the test turns."""

import functools
import json
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from fastapi import FastAPI
from fastapi.testclient import TestClient

from shardtune.db.session import Database
from shardtune.service.cli import main
from shardtune.service.cli.processes import listening_socket
from shardtune.service.process.context import Context
from shardtune.service.settings import Settings
from tests.flow.helpers.manual_clock import Clock
from tests.support.long_run import WIDE
from tests.support.service import spare_apps
from tests.support.service.local_client import local_client
from tests.support.service.postgres_server import administer, copy_of
from tests.support.service.scenarios import tune


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave the copy on Postgres of what is marked `wide_on_postgres` to the long run."""
    for item in items:
        if item.get_closest_marker("wide_on_postgres") and item.get_closest_marker("postgres"):
            item.add_marker(WIDE)


@pytest.fixture
def clock() -> Clock:
    return Clock()


def prepare(url: str, work: Callable[[TestClient], object]) -> None:
    """Let it work over HTTP with a service on that database."""
    settings = Settings(database_url=url, sweep_s=3600, fingerprint_check_s=3600, retune_every_s=3600)
    context = Context(Database(url), settings, Clock())
    app = spare_apps.take(settings, context)
    with local_client(app) as client:
        work(client)
    spare_apps.give_back(app)


def answer(url: str, worker: str) -> None:
    """One study, from its creation to its answer."""
    prepare(url, lambda client: tune(client, worker=worker, is_quiet=False))


@pytest.fixture(scope="session")
def sqlite_after(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A database after what a function did over HTTP, made once for each function; for a module's `sqlite_start`."""
    folder = tmp_path_factory.mktemp("prepared")

    @functools.cache
    def after(work: Callable[[TestClient], object]) -> Path:
        path = folder / f"{work.__module__}-{work.__name__}.sqlite3"
        shutil.copy(sqlite_template, path)
        prepare(f"sqlite:///{path}", work)
        return path

    return after


@pytest.fixture(scope="session")
def answered_sqlite(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A database with an answered study, made once for each worker that measured it."""
    folder = tmp_path_factory.mktemp("answered")

    @functools.cache
    def measured_by(worker: str = "sim") -> Path:
        path = folder / f"{worker}.sqlite3"
        shutil.copy(sqlite_template, path)
        answer(f"sqlite:///{path}", worker)
        return path

    return measured_by


@pytest.fixture(scope="session")
def answered_postgres(postgres_server: str, postgres_template: str) -> Callable[[str], str]:
    """Postgres database that holds the answered study."""

    @functools.cache
    def measured_by(worker: str = "sim") -> str:
        name = f"answered_by_{worker.replace('-', '_')}"
        answer(copy_of(postgres_server, postgres_template, name), worker)
        # A loop of the service that was just looking may hold a connection for a moment after its end.
        administer(postgres_server, f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")
        return name

    return measured_by


@pytest.fixture
def sqlite_start(request: pytest.FixtureRequest, sqlite_template: Path) -> Path:
    """Database that holds the study where the test is marked `answered`."""
    marked = request.node.get_closest_marker("answered")
    return request.getfixturevalue("answered_sqlite")(**marked.kwargs) if marked else sqlite_template


@pytest.fixture
def postgres_start(request: pytest.FixtureRequest, postgres_template: str) -> str:
    """Postgres database that holds the study where the test is marked `answered`."""
    marked = request.node.get_closest_marker("answered")
    return request.getfixturevalue("answered_postgres")(**marked.kwargs) if marked else postgres_template


@pytest.fixture
def spare_app() -> Iterator[FastAPI]:
    """Application for a service whose context the test makes."""
    app = spare_apps.take(Settings())
    yield app
    spare_apps.give_back(app)


@pytest.fixture
def open_service(clock: Clock) -> Iterator[Callable[[str], TestClient]]:
    """Start a service on a database; the test sweeps expired leases and looks at fingerprints itself."""
    clients: list[TestClient] = []

    def open_one(url: str) -> TestClient:
        settings = Settings(database_url=url, sweep_s=3600, fingerprint_check_s=3600, retune_every_s=3600)
        clients.append(local_client(spare_apps.take(settings, Context(Database(url), settings, clock))))
        return clients[-1].__enter__()

    yield open_one
    for client in clients:
        client.__exit__(None, None, None)
        spare_apps.give_back(client.app)


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
    """Context of the service behind `quick_client`."""
    return quick_client.app.state.context


@pytest.fixture
def http(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[httpx.Client]:
    """A client of the service that the commands find in the environment."""
    settings = Settings(database_url=sqlite_url)
    app = spare_apps.take(settings, Context.opened(settings))
    server = uvicorn.Server(uvicorn.Config(app, log_config=None))
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
    spare_apps.give_back(app)


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
