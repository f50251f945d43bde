"""uvicorn server that stops at once on SIGTERM, and closes slow connections.

On SIGTERM, streams and waiting lease requests end at once instead of delaying the end of the process. A client that
sends or reads slowly occupies a connection, and uvicorn itself does not limit this time.
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

from shardtune.service.process.byte_budget import PIECE_BYTES
from shardtune.service.process.context import Context
from shardtune.service.process.peer_user import PEER_USER, PeerUser
from shardtune.service.settings import Settings

_LINGER_S = 2.0
"""Seconds to wait for the rest of a request that was answered before it had arrived completely, so that its sender can
read the response.
"""
_PARSED_BYTES = 1 << 20
"""Largest announced body of which the rest is parsed after an early response, so that its connection can be used again."""
_DROPPED_BYTES = 32 << 20
"""Maximum bytes of a larger body that are read, and dropped unparsed, after an early response."""
_DROP_EVERY_S = 0.02
"""Seconds between two reads of what is dropped, at most 256 KiB each (asyncio). Unread bytes hold their sender back."""
_DROP_LINGER_S = 5.0
"""Seconds to wait for the rest of a body that is dropped; 32 MiB take half of them."""
# uvicorn answers 503 when all connections are taken, which is only needed where this does not help.
_CROWDED_FRACTION = 0.9
"""Fraction of the allowed connections above which a new connection closes the one with the oldest unfinished request.
"""
# With Python's default of 700, collections took a twentieth of the time of claims and reports, whose sessions create
# and free thousands of objects.
_GC_THRESHOLD = 5_000
"""Number of newly created objects between two runs of Python's garbage collection."""
_OTHER_FILES = 256
"""Number of open files that the process may need in addition to its connections."""


class Server(uvicorn.Server):
    """uvicorn server that passes the stop signal (SIGTERM) on to everything in the process that waits."""

    def __init__(self, config: uvicorn.Config, context: Context) -> None:
        super().__init__(config)
        self._context = context

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to accept connections, with garbage collection tuned for short pauses."""
        # Objects loaded until now live forever; scanning them for garbage stops all requests for 0.1 s and more.
        await super().startup(sockets)
        gc.freeze()
        gc.set_threshold(_GC_THRESHOLD)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Record the stop signal. uvicorn then closes the listener, waits for running requests and ends."""
        self._context.stopping.set()
        super().handle_exit(sig, frame)


class ServerConfig(uvicorn.Config):
    """uvicorn configuration with limits on the number and slowness of connections."""

    def __init__(self, app: Any, settings: Settings, **options: Any) -> None:
        super().__init__(
            app,
            http=Connection,
            ws="none",
            limit_concurrency=settings.max_connections,
            # Its own log configuration would replace ours.
            log_config=None,
            timeout_graceful_shutdown=5,
            # Given here, so that uvicorn does not read FORWARDED_ALLOW_IPS, which may say "*".
            forwarded_allow_ips=list(settings.trusted_proxies),
            **options,
        )
        self.receive_s = settings.request_receive_s
        self.crowd = int(settings.max_connections * _CROWDED_FRACTION)
        self.arriving: dict[Connection, None] = {}
        """Connections whose request has not arrived completely, oldest first."""


class Connection(H11Protocol):
    """HTTP/1.1 connection that is closed if a request does not arrive completely in time."""

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
        self._droppable_bytes: int | None = None
        """Bytes that are still dropped of a large request that was answered early; None: requests are parsed."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the time limit for the connection's first request."""
        super().connection_made(transport)
        peer = transport.get_extra_info("socket")
        if peer is not None:
            # Each request of the connection finds it in its state (service.access.local_only).
            self.app_state = self.app_state | {PEER_USER: PeerUser(peer)}
        if peer is not None and peer.family in (socket.AF_INET, socket.AF_INET6):
            # The kernel ends the connection if the client does not read the response for so long.
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(self._limits.receive_s * 1000))
        # The default of 64 KiB would be multiplied by every client that does not read.
        transport.set_write_buffer_limits(high=PIECE_BYTES)
        self._start_deadline(self._limits.receive_s)
        if len(self.connections) > self._limits.crowd:
            next(iter(self._limits.arriving)).abort()

    def data_received(self, data: bytes) -> None:
        """Restart the connection's time limit if its request has not arrived completely."""
        if self._droppable_bytes is not None:
            self._drop(len(data))
            return
        super().data_received(data)
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._stop_deadline()
        elif self._deadline is None:
            self._start_deadline(self._limits.receive_s)

    def on_response_complete(self) -> None:
        """Shorten the time limit for the rest of a request that was answered already."""
        super().on_response_complete()
        if self.conn.their_state is not h11.SEND_BODY or self.transport.is_closing():
            return
        # The connection stays open for a moment: closing with unread data would reset it before the sender has read the
        # response.
        self._stop_deadline()
        is_large = self._is_body_large()
        self._start_deadline(_DROP_LINGER_S if is_large else _LINGER_S)
        if is_large:
            # After this end of the stream, a sender whose connection is reset finds its body unwanted (EPIPE), and not a
            # connection that broke (ECONNRESET).
            self.transport.write_eof()
            self._droppable_bytes = _DROPPED_BYTES

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the time limit of a connection that has closed."""
        self._stop_deadline()
        super().connection_lost(exc)

    def _is_body_large(self) -> bool:
        """Whether the current request announces a body that is too large to be parsed for nothing, or no size."""
        announced = dict(self.headers).get(b"content-length", b"")
        return not announced.isdigit() or int(announced) > _PARSED_BYTES

    def _drop(self, size: int) -> None:
        """Count dropped bytes, and read on a moment later; no more after the last that may be dropped."""
        assert self._droppable_bytes is not None
        self._droppable_bytes -= size
        self.flow.pause_reading()
        if self._droppable_bytes > 0:
            self.loop.call_later(_DROP_EVERY_S, self.flow.resume_reading)

    def abort(self) -> None:
        """Close the connection at once, even if data is still unsent or unread."""
        self._stop_deadline()
        self.transport.abort()

    def _start_deadline(self, patience_s: float) -> None:
        self._limits.arriving[self] = None
        self._deadline = self.loop.call_later(patience_s, self.abort)

    def _stop_deadline(self) -> None:
        self._limits.arriving.pop(self, None)
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def allow_files(connections: int) -> None:
    """Raise the process's limit of open files to the number that its connections need, as far as the system allows."""
    soft_limit, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = connections + _OTHER_FILES
    if soft_limit != resource.RLIM_INFINITY and soft_limit < needed:
        new_limit = needed if hard_limit == resource.RLIM_INFINITY else min(needed, hard_limit)
        resource.setrlimit(resource.RLIMIT_NOFILE, (new_limit, hard_limit))
