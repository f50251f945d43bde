"""Event streams and who holds them: so many for each key, and none for longer than its key counts."""

import logging
import time
from collections.abc import AsyncIterator, Callable

from fastapi import Request, Response
from fastapi.sse import EventSourceResponse
from sqlalchemy.exc import SQLAlchemyError
from starlette.concurrency import run_in_threadpool
from starlette.types import Receive, Scope, Send

from shardtune.service.http.errors import TooMany
from shardtune.service.process.context import Context

log = logging.getLogger(__name__)

_RETRY_S = 10
_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}


class StreamPermit:
    """Whether the holder of a stream may go on reading, looked up once in a keep-alive."""

    def __init__(self, context: Context, is_good: Callable[[], bool]) -> None:
        self._is_good, self._every_s = is_good, context.settings.stream_heartbeat_s
        self._looked_s = time.monotonic()

    async def holds(self) -> bool:
        """False: the stream ends; whoever asks again is told why."""
        if time.monotonic() - self._looked_s < self._every_s:
            return True
        self._looked_s = time.monotonic()
        try:
            return await run_in_threadpool(self._is_good)
        except SQLAlchemyError:
            log.warning("stream ended: the database cannot be read")
            return False


def hold(context: Context, request: Request, content: AsyncIterator[bytes]) -> Response:
    """A stream that counts among its client's until it ends, however that happens.

    Raises:
        TooMany: this client, or all together, have as many open as they may.
    """
    client = context.principal.key_id or (request.client.host if request.client else "unknown")
    settings = context.settings
    if not context.stream_limits.take(client, settings.max_streams_per_client, settings.max_streams):
        raise TooMany(
            "too_many_streams",
            f"this client has {settings.max_streams_per_client} event streams open, or all clients together have "
            f"{settings.max_streams}; close one, or read pages without Accept: text/event-stream",
            _RETRY_S,
        )
    return _HeldStream(content, lambda: context.stream_limits.leave(client))


class _HeldStream(EventSourceResponse):
    """Gives its seat back also when the client was gone before it began."""

    def __init__(self, content: AsyncIterator[bytes], leave: Callable[[], None]) -> None:
        super().__init__(content, headers=_HEADERS)
        self._leave = leave

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._leave()
