"""HTTP/1.1 connections that close if a request does not arrive in time, and that let a rejected sender read why."""

import asyncio
import contextlib
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from shardtune.service.http.error_answers import problem
from shardtune.service.process.byte_budget import PIECE_BYTES
from shardtune.service.process.peer_user import PEER_USER, PeerUser
from shardtune.service.request_parser import RequestParser

_LINGER_S = 2.0
"""Seconds to wait for the rest of a small request whose response was sent before the request had arrived completely.
If the rest arrives, the connection can serve another request."""
_DROPPED_BYTES = 32 << 20
"""Maximum number of bytes that are read and discarded from an incomplete request before its connection is closed."""
_DROP_EVERY_S = 0.02
"""Seconds between two reads of data that is discarded; each read takes at most `_READ_BYTES`. The pauses slow the
sender down, because its send buffer fills.
"""
_DROP_LINGER_S = 5.0
"""Maximum seconds that the rest of a request is read and discarded. Discarding 32 MiB (`_DROPPED_BYTES`) takes half of
this time."""
_READ_BYTES = 256 << 10
"""Maximum bytes of one read of data that needs little or no parsing: a request body with a Content-Length, or data
that is discarded."""
# A chunk of one byte takes six on the wire and a dozen microseconds of the event loop: 256 KiB of them took 0.5 s before
# their sender's key had been looked at.
_PARSED_READ_BYTES = 4 << 10
"""Maximum bytes of one read of data whose every byte is parsed: a request's head, or a chunked body."""


@dataclass(frozen=True)
class ConnectionLimits:
    """Limits that all connections of a server share, together with their common state. They are used only in the event
    loop's thread."""

    receive_s: float
    """Seconds within which a request must arrive completely."""
    crowd: int
    """Number of open connections above which each new connection makes the server close the connection with the oldest
    incomplete request."""
    arriving: "dict[Connection, None]" = field(default_factory=dict)
    """Connections whose request has not arrived completely, oldest first."""
    buffer: memoryview = field(default_factory=lambda: memoryview(bytearray(_READ_BYTES)))
    """Buffer that all connections share for reading; they use it one after the other."""


class ConnectionConfig(uvicorn.Config):
    """uvicorn configuration that also holds the limits of connections."""

    limits: ConnectionLimits


class Connection(H11Protocol, asyncio.BufferedProtocol):
    """HTTP/1.1 connection that is closed if a request does not arrive completely in time."""

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        assert isinstance(config, ConnectionConfig)
        self._limits = config.limits
        self.conn = self._parser = RequestParser()
        self._deadline: asyncio.TimerHandle | None = None
        self._is_answered_early = False
        """Whether the connection reads the rest of a small request that has already been answered."""
        self._droppable_bytes: int | None = None
        """Number of bytes that the connection still reads and discards before it closes. If None, it parses what it
        reads."""
        self._is_stopping = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the time limit for the connection's first request."""
        super().connection_made(_LingeringTransport(transport, self._linger))  # type: ignore[arg-type]
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

    def get_buffer(self, _size_hint: int) -> memoryview:
        """Part of the shared buffer that the next read fills. It is large for bytes that need little parsing."""
        is_cheap = self._droppable_bytes is not None or (
            self.conn.their_state is h11.SEND_BODY and not self._parser.has_chunks
        )
        return self._limits.buffer[: _READ_BYTES if is_cheap else _PARSED_READ_BYTES]

    def buffer_updated(self, nbytes: int) -> None:
        """Parse the bytes that were read, or discard them if the connection is about to close."""
        if self._droppable_bytes is None:
            self.data_received(bytes(self._limits.buffer[:nbytes]))
        else:
            self._drop(nbytes)

    def data_received(self, data: bytes) -> None:
        """Parse received bytes, and restart or stop the connection's time limit, depending on whether its request has
        arrived completely.
        """
        super().data_received(data)
        if self._droppable_bytes is not None:
            return
        if self._is_answered_early and self.conn.our_state is not h11.DONE:
            self._is_answered_early = False
            self._stop_deadline()
            if self._parser.is_idle:
                # uvicorn started it with the response; the rest of the body has ended it.
                self.timeout_keep_alive_task = self.loop.call_later(
                    self.timeout_keep_alive, self.timeout_keep_alive_handler
                )
                return
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._stop_deadline()
        elif self._deadline is None:
            self._start_deadline(self._limits.receive_s)

    def on_response_complete(self) -> None:
        """Wait a moment for the rest of a small request whose response was complete before the request had arrived. Do
        nothing for a large request, whose connection is already closing."""
        # Asked before uvicorn begins the next request of a client that sends several at once.
        is_early = self.conn.their_state is h11.SEND_BODY
        super().on_response_complete()
        if not is_early or self.transport.is_closing():
            return
        self._stop_deadline()
        self._is_answered_early = True
        self._start_deadline(_LINGER_S, self.transport.close)

    def send_400_response(self, _msg: str) -> None:
        """Answer bytes that are no valid HTTP request with 400, and close the connection."""
        # Once a response has begun, only the end of the connection can tell its client.
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            answer = problem(
                400, "bad_request", f"this is no valid HTTP/1.1 request: {self._parser.mistake}; correct it"
            )
            headers = [*answer.raw_headers, (b"connection", b"close")]
            response = h11.Response(status_code=400, headers=headers, reason=b"Bad Request")
            for event in (response, h11.Data(data=bytes(answer.body)), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def shutdown(self) -> None:
        """Close the connection as soon as its response is complete, without waiting for the rest of a request. Called
        when the server stops.
        """
        self._is_stopping = True
        super().shutdown()
        if self._droppable_bytes is not None:
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the time limit of a connection that has closed."""
        self._stop_deadline()
        super().connection_lost(exc)

    def abort(self) -> None:
        """Close the connection at once, even if data is still unsent or unread."""
        self._stop_deadline()
        self.transport.abort()

    def _linger(self, transport: asyncio.Transport) -> bool:
        """Shut down only the sending direction of a connection whose client still sends, and discard the incoming
        bytes, instead of closing the connection. Returns whether this was done.

        Closing a socket with unread data would reset the connection, and the client would lose the response. If the
        reset comes after the end of the response, the client sees that its body is unwanted (EPIPE), and not a broken
        connection (ECONNRESET).
        """
        still_sends = self.conn.their_state in (h11.SEND_BODY, h11.ERROR)
        if self._is_stopping or self._droppable_bytes is not None or not still_sends:
            return False
        with contextlib.suppress(OSError):  # its client is gone already
            transport.write_eof()
        if self.cycle is not None and not self.cycle.response_complete:
            # As when the connection is lost: nothing can be written any more.
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self._droppable_bytes = _DROPPED_BYTES
        self._stop_deadline()
        self._start_deadline(_DROP_LINGER_S)
        self.flow.resume_reading()
        return True

    def _drop(self, size: int) -> None:
        """Count discarded bytes and pause reading for a moment. Once the maximum number of bytes is discarded, stop
        reading for good."""
        assert self._droppable_bytes is not None
        self._droppable_bytes -= size
        self.flow.pause_reading()
        if self._droppable_bytes > 0:
            self.loop.call_later(_DROP_EVERY_S, self.flow.resume_reading)

    def _start_deadline(self, patience_s: float, end: Callable[[], None] | None = None) -> None:
        self._limits.arriving[self] = None
        self._deadline = self.loop.call_later(patience_s, end or self.abort)

    def _stop_deadline(self) -> None:
        self._limits.arriving.pop(self, None)
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class _LingeringTransport:
    """Transport whose first call of `close` may first read the rest of the request. From that call on, `is_closing` is
    true."""

    def __init__(self, transport: asyncio.Transport, linger: Callable[[asyncio.Transport], bool]) -> None:
        self._transport, self._linger = transport, linger
        self._lingers = False

    def close(self) -> None:
        """Close the transport at once, or let the connection first discard the rest of its request."""
        if self._transport.is_closing() or not self._linger(self._transport):
            self._transport.close()
        else:
            self._lingers = True

    def is_closing(self) -> bool:
        """Whether the transport closes now, or will close once the rest of a request has been discarded."""
        return self._lingers or self._transport.is_closing()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
