"""A receiver of webhooks that takes a connection and what comes over it, and never answers."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def silent_receiver() -> Iterator[str]:
    """Run the receiver and yield its address."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    taken: list[socket.socket] = []

    def take() -> None:
        with suppress(OSError):
            while True:
                taken.append(listener.accept()[0])

    thread = threading.Thread(target=take, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/hook"
    finally:
        # Wakes the thread, which closing alone does not.
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()
        for connection in taken:
            connection.close()
