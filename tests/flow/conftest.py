"""The real service over HTTP, in process, with a clock the test turns."""

from collections.abc import Callable, Iterator

import pytest
from fastapi.testclient import TestClient
from local_client import local_client
from still_clock import Clock

from db.session import Database
from service.app import create_app
from service.context import Context
from service.settings import Settings


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def open_service(clock: Clock) -> Iterator[Callable[[str], TestClient]]:
    """Start a service on a database; the test sweeps expired leases and looks at fingerprints itself."""
    clients = []

    def open_one(url: str) -> TestClient:
        context = Context(
            Database(url),
            Settings(database_url=url, sweep_s=3600, fingerprint_check_s=3600, retune_every_s=3600),
            clock,
        )
        client = local_client(create_app(context=context))
        clients.append(client)
        return client.__enter__()

    yield open_one
    for client in clients:
        client.__exit__(None, None, None)


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
