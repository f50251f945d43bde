"""A TCP proxy on loopback that can be told to cut, to hold answers back, or to half-close."""

import contextlib
import socket
import threading
from typing import Literal

Mode = Literal["pass", "cut", "hold", "half_close"]


class LoopbackProxy:
    """Relays to one address. `mode` may change at any time and counts for open connections, too."""

    def __init__(self, target: tuple[str, int]) -> None:
        self.mode: Mode = "pass"
        self._target = target
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """End everything."""
        self._listener.close()
        self._drop()

    def fail(self, mode: Mode) -> None:
        """Behave like this from now on."""
        self.mode = mode
        if mode == "cut":
            self._drop()

    def _drop(self) -> None:
        for item in list(self._open):
            with contextlib.suppress(OSError):
                item.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self.mode == "cut":
                client.close()
                continue
            server = socket.create_connection(self._target)
            self._open |= {client, server}
            threading.Thread(target=self._relay, args=(client, server, False), daemon=True).start()
            threading.Thread(target=self._relay, args=(server, client, True), daemon=True).start()

    def _relay(self, source: socket.socket, sink: socket.socket, answers: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if answers and self.mode == "hold":
                    continue
                if answers and self.mode == "half_close":
                    # The first half of the answer, then the end: what a dying middlebox leaves behind.
                    sink.sendall(data[: len(data) // 2])
                    break
                sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)
        self._open -= {source}
