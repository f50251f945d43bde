"""Parser of HTTP/1.1 requests that bounds what a body in chunks costs, and says what is wrong with a request."""

from typing import Any

import h11

_MAX_CHUNKS = 20_000
"""Maximum number of chunks of a request body, because parsing so many takes the event loop a quarter of a second. A
body of 32 MiB therefore needs chunks of 1.6 KiB or more on average.
"""
_HEAD_BYTES = 64 << 10
"""Maximum bytes of a request's first line and headers together."""
_PARSED_BYTES = 1 << 20
"""Maximum Content-Length in bytes of a request whose body is still read to its end after an early response, so that
the connection can be used for the next request. If the body is larger, the connection is closed.
"""


class RequestParser(h11.Connection):
    """Parser of one connection's HTTP requests, based on h11."""

    def __init__(self) -> None:
        super().__init__(h11.SERVER, _HEAD_BYTES)
        self.mistake = ""
        """Reason why the last request is not valid HTTP; empty if it is valid."""
        self.announced_bytes: int | None = None
        """Content-Length of the current request; None if its body comes in chunks."""
        self._chunks = 0

    @property
    def has_chunks(self) -> bool:
        """Whether the current request's body comes in chunks."""
        return self.announced_bytes is None

    @property
    def is_idle(self) -> bool:
        """Whether the connection is between two requests: the last one is answered, and no byte of the next one has
        arrived.
        """
        return self.our_state is h11.IDLE and self.their_state is h11.IDLE and not self.trailing_data[0]

    def send(self, event: Any) -> Any:
        """Convert a response event into bytes. Adds the header `Connection: close` if the connection closes after the
        response.

        The connection closes if the response begins before the end of a request body that is large or comes in
        chunks, because the rest of the body is then not parsed. Without the header, the client might send its next
        request on this connection.
        """
        is_parsed = self.announced_bytes is not None and self.announced_bytes <= _PARSED_BYTES
        if isinstance(event, h11.Response) and self.their_state is h11.SEND_BODY and not is_parsed:
            headers = [*event.headers.raw_items(), (b"connection", b"close")]
            event = h11.Response(status_code=event.status_code, headers=headers, reason=event.reason)
        return super().send(event)

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """Parse the next event out of the received bytes.

        Raises:
            h11.RemoteProtocolError: the request is not valid HTTP.
        """
        try:
            event = super().next_event()
            if isinstance(event, h11.Request):
                self._begin(event)
            elif isinstance(event, h11.Data) and event.chunk_start:
                self._count_chunk()
        except h11.RemoteProtocolError as error:
            is_too_long = error.error_status_hint == 431
            self.mistake = f"its line and headers exceed {_HEAD_BYTES} bytes" if is_too_long else str(error)
            raise
        return event

    def _begin(self, request: h11.Request) -> None:
        headers = dict(request.headers)
        has_chunks = b"transfer-encoding" in headers
        if has_chunks and b"content-length" in headers:
            # A proxy that believes the length, and this service the chunks, would see different requests (RFC 9112, 6.1).
            raise h11.RemoteProtocolError("it has both Content-Length and Transfer-Encoding")
        self.announced_bytes = None if has_chunks else int(headers.get(b"content-length", b"0"))
        self._chunks = 0

    def _count_chunk(self) -> None:
        self._chunks += 1
        if self._chunks > _MAX_CHUNKS:
            raise h11.RemoteProtocolError(f"its body has more than {_MAX_CHUNKS} chunks, send larger ones")
