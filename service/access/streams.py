"""Limit the number of event streams per client, and end each stream when the client's API key is no longer valid."""

import logging
import time
from collections.abc import AsyncIterator, Callable

from fastapi import Request, Response
from fastapi.sse import EventSourceResponse
from sqlalchemy.exc import SQLAlchemyError
from starlette.concurrency import run_in_threadpool
from starlette.types import Receive, Scope, Send

from shardtune.service.http.errors import TooManyRequests
from shardtune.service.process.context import Context

log = logging.getLogger(__name__)

_RETRY_S = 10
_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}


class StreamPermit:
    """Permission of a client to keep an event stream open, checked once per keep-alive interval."""

    def __init__(self, context: Context, is_authorized: Callable[[], bool]) -> None:
        self._is_authorized, self._interval_s = is_authorized, context.settings.stream_heartbeat_s
        self._checked_s = time.monotonic()

    async def is_valid(self) -> bool:
        """Whether an event stream may stay open. If not, the stream ends, and the client's next request gets the reason
        as an error.
        """
        if time.monotonic() - self._checked_s < self._interval_s:
            return True
        self._checked_s = time.monotonic()
        try:
            return await run_in_threadpool(self._is_authorized)
        # The database is away: end the stream rather than keep it open unchecked.
        except SQLAlchemyError:
            log.warning("stream ended: the database cannot be read")
            return False


def open_stream(context: Context, request: Request, content: AsyncIterator[bytes]) -> Response:
    """Open an event stream that counts towards its client's limit until the stream ends, for whatever reason it ends.

    Raises:
        TooMany: the client has the maximum number of open streams, or its project already has at least as many as the
            service has free ones.
    """
    client = context.principal.key_id or (request.client.host if request.client else "unknown")
    sender, settings = context.principal.sender, context.settings
    if not context.stream_limits.open_stream(client, sender, settings.max_streams_per_client, settings.max_streams):
        raise TooManyRequests(
            "too_many_streams",
            f"this client has {settings.max_streams_per_client} event streams open, or its project has as many as are "
            f"free of {settings.max_streams}; close one, or read pages without Accept: text/event-stream",
            _RETRY_S,
        )
    return _CountedStream(content, lambda: context.stream_limits.close_stream(client, sender))


class _CountedStream(EventSourceResponse):
    """Response with an event stream. At its end it stops counting towards its client's limit, even if the client
    disconnected before the first byte.
    """

    def __init__(self, content: AsyncIterator[bytes], free_place: Callable[[], None]) -> None:
        super().__init__(content, headers=_HEADERS)
        self._free_place = free_place

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Starlette may never call the body's iterator for a client that has gone, so a `finally` inside the generator
        # would not run.
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._free_place()
