"""A service with the MCP server, and keys for it."""

import threading
from collections.abc import Callable, Iterator

import httpx
import pytest
import uvicorn

from shardtune.service.cli.processes import listening_socket
from shardtune.service.process.context import Context
from shardtune.service.settings import Settings
from tests.support.service import spare_apps
from tests.support.service.scenarios import bearer, make_key


@pytest.fixture
def service(sqlite_url: str) -> Iterator[httpx.Client]:
    """A service with the MCP server."""
    settings = Settings(database_url=sqlite_url, mcp=True)
    app = spare_apps.take(settings, Context.opened(settings))
    server = uvicorn.Server(uvicorn.Config(app, log_config=None))
    listener = listening_socket()
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    with httpx.Client(base_url=f"http://127.0.0.1:{listener.getsockname()[1]}", timeout=60) as client:
        yield client
    server.should_exit = True
    thread.join()
    listener.close()
    spare_apps.give_back(app)


@pytest.fixture
def keys(service: httpx.Client) -> Callable[..., str]:
    """The secret of a new key with these scopes; the first call makes the operator's."""
    operator: dict[str, str] = {}

    def make(*scopes: str, project: str | None = None) -> str:
        if not operator:
            operator.update(bearer(make_key(service, "admin")))
        return str(make_key(service, *scopes, project=project, **operator)["secret"])

    return make
