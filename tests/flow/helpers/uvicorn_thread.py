"""A service behind uvicorn in a thread of the test, as `shardtune serve` runs it, and raw connections to it."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import httpx

from shardtune.db.session import Database
from shardtune.service.cli.processes import listening_socket
from shardtune.service.process.context import Context
from shardtune.service.server import Server, ServerConfig
from shardtune.service.settings import Settings
from tests.support.service import spare_apps

_PATIENCE_S = 30


@dataclass(frozen=True)
class Served:
    """Address of a running service, and its context."""

    context: Context
    client: httpx.Client
    port: int

    def connect(self) -> socket.socket:
        """A connection that says nothing yet."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=_PATIENCE_S)

    def say(self, text: str) -> bytes:
        """Send these bytes alone and read the response to the end of the connection or of the answer's head."""
        with self.connect() as connection:
            connection.sendall(text.encode())
            return heard(connection)


def heard(connection: socket.socket) -> bytes:
    """Read the response to the end of the connection or of an answer's head.

    Raises:
        TimeoutError: neither came.
    """
    actual = b""
    with contextlib.suppress(ConnectionError):
        while b"\r\n\r\n" not in actual and (data := connection.recv(65536)):
            actual += data
    return actual


@contextlib.contextmanager
def served(url: str, **settings: object) -> Iterator[Served]:
    """One service on a migrated database."""
    chosen = Settings(database_url=url, **settings)
    context = Context(Database(url), chosen)
    app = spare_apps.take(chosen, context)
    server = Server(ServerConfig(app, chosen), context)
    listener = listening_socket()
    port = listener.getsockname()[1]
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=_PATIENCE_S, trust_env=False) as client:
            yield Served(context, client, port)
    finally:
        context.stopping.set()
        server.should_exit = True
        thread.join()
        listener.close()
        spare_apps.give_back(app)
