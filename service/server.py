"""uvicorn, told to drain and to lose patience.

On SIGTERM streams and waiting lease requests end at once instead of holding the process. Who connects and then sends
slowly, or reads slowly, costs a connection: uvicorn would wait for it without end, and has no limit of its own for it.
"""

import asyncio
import gc
import resource
import socket
from types import FrameType
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from shardtune.service.process.context import Context
from shardtune.service.settings import Settings

_LINGER_S = 2.0
"""For the rest of a request that was answered before its end, so that its sender can read the answer."""
_CROWDED = 0.9
"""Share of the connections there may be, beyond which a new one ends the one that has sent an unfinished request for
longest. All are needed only where that does not help; uvicorn then answers 503."""
_GARBAGE = 5_000
"""Objects made and not yet freed between two looks for garbage. With Python's own 700 these took a twentieth of the time of
claims and reports, whose sessions make and free thousands."""
_OTHER_FILES = 256
"""Files the process may need beside its connections."""


class Server(uvicorn.Server):
    """A server that passes the signal on to whatever waits."""

    def __init__(self, config: uvicorn.Config, context: Context) -> None:
        super().__init__(config)
        self._context = context

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to serve. What was loaded until now stays; looking through it for garbage stops all requests for 0.1 s and more."""
        await super().startup(sockets)
        gc.freeze()
        gc.set_threshold(_GARBAGE)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Note the signal; uvicorn then closes the listener, waits for requests under way and ends."""
        self._context.stopping.set()
        super().handle_exit(sig, frame)


class ServerConfig(uvicorn.Config):
    """How uvicorn serves the application, with limits on connections."""

    def __init__(self, app: Any, settings: Settings, **options: Any) -> None:
        super().__init__(
            app,
            http=Connection,
            ws="none",
            limit_concurrency=settings.max_connections,
            # Its own log configuration would replace ours.
            log_config=None,
            timeout_graceful_shutdown=5,
            **options,
        )
        self.receive_s = settings.request_receive_s
        self.crowd = int(settings.max_connections * _CROWDED)
        self.arriving: dict[Connection, None] = {}
        """Connections whose request has not arrived in full, the oldest first."""


class Connection(H11Protocol):
    """HTTP/1.1 whose requests arrive in time, or not at all."""

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        assert isinstance(config, ServerConfig)
        self._limits = config
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """The request must arrive from now on."""
        super().connection_made(transport)
        peer = transport.get_extra_info("socket")
        if peer is not None and peer.family in (socket.AF_INET, socket.AF_INET6):
            # An answer that is not taken for so long is not wanted; the kernel tells.
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(self._limits.receive_s * 1000))
        self._await(self._limits.receive_s)
        if len(self.connections) > self._limits.crowd:
            next(iter(self._limits.arriving)).abort()

    def data_received(self, data: bytes) -> None:
        """Wait on where the request has not arrived in full."""
        super().data_received(data)
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._stop_awaiting()
        elif self._deadline is None:
            self._await(self._limits.receive_s)

    def on_response_complete(self) -> None:
        """Do not wait long for the rest of what was answered already."""
        super().on_response_complete()
        if self.conn.their_state is h11.SEND_BODY:
            self._stop_awaiting()
            self._await(_LINGER_S)

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is awaited any more."""
        self._stop_awaiting()
        super().connection_lost(exc)

    def abort(self) -> None:
        """End it at once, whatever it still says or reads."""
        self._stop_awaiting()
        self.transport.abort()

    def _await(self, patience_s: float) -> None:
        self._limits.arriving[self] = None
        self._deadline = self.loop.call_later(patience_s, self.abort)

    def _stop_awaiting(self) -> None:
        self._limits.arriving.pop(self, None)
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def allow_files(connections: int) -> None:
    """Let the process open as many files as its connections need, as far as the system lets it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + _OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
