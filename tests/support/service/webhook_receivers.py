"""Receivers of webhooks: one that takes whatever it is sent, one that notes it and answers as told, one that is dead."""

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class _Server(ThreadingHTTPServer):
    request_queue_size = 64


class Receiver:
    """Somebody's endpoint; answers with `status`."""

    def __init__(self, address: str = "127.0.0.1", port: int = 0, tls: ssl.SSLContext | None = None) -> None:
        self.status = 204
        self.got: list[tuple[dict[str, str], str]] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                receiver.got.append((dict(self.headers), body.decode()))
                self.send_response(receiver.status)
                self.send_header("location", "http://169.254.169.254/")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = _Server((address, port), Handler)
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.port = self._server.server_address[1]
        self.url = f"http://{address}:{self.port}/hook"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def receiver() -> Iterator[str]:
    """The address of one that is asked nothing."""
    opened = Receiver()
    try:
        yield opened.url
    finally:
        opened.close()


@contextmanager
def dead_receiver() -> Iterator[str]:
    """The address of one that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/hook"
