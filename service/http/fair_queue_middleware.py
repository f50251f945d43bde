"""ASGI middleware that queues requests fairly by sender: a sender of many requests at once delays only its own
requests.

A request is no faster with more threads, since they share one interpreter; so few requests are handled at a time. A
free slot goes to the sender with the fewest slots in use. A request takes its slot only after it has arrived, and a
streamed response frees the slot when the response begins. Requests for work use a separate queue (service.leasing).
"""

from fastapi import FastAPI, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shardtune.service.http.pre_body_auth import MCP, WITH_BODY
from shardtune.service.process.context import context_of
from shardtune.service.process.fair_queue import FairQueue

MAX_REQUESTS = 8
"""Number of requests that one process handles at a time; some of them wait for the database."""
_MAX_PER_SENDER = MAX_REQUESTS // 2
"""Maximum number of request slots that one sender may occupy, so that a sender whose requests wait for locked rows
does not delay other senders.
"""
_EXEMPT_PATHS = frozenset({"/v1/leases", "/healthz", MCP})
"""Request paths that need no slot. `/v1/leases` waits for work in a separate queue, `/healthz` costs nothing, and a
call of an MCP tool sends API requests of its own, which need slots.
"""


def install(app: FastAPI) -> None:
    """Add the fair queue to the application. Call this function before authentication is added: what is added later
    runs first, and authentication must reject requests before they take a slot.
    """
    app.add_middleware(FairQueueMiddleware)


class FairQueueMiddleware:
    """Middleware that occupies a slot of the fair queue from a request's complete arrival until its response begins."""

    def __init__(self, app: ASGIApp) -> None:
        self._app, self._queue = app, FairQueue(MAX_REQUESTS, _MAX_PER_SENDER)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in _EXEMPT_PATHS:
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        slot = _RequestSlot(self._queue, context_of(request).known_senders.sender_of(scope))
        # Nobody calls `receive` for a request without a body, nor for one of a method whose bodies are not read.
        has_body = request.headers.get("content-length", "0") != "0" or "transfer-encoding" in request.headers
        if scope["method"] not in WITH_BODY or not has_body:
            await slot.take()

        async def receive_all() -> Message:
            message = await receive()
            if message["type"] == "http.request" and not message.get("more_body"):
                await slot.take()
            return message

        async def send_on(message: Message) -> None:
            if message["type"] == "http.response.start":
                # The slot is freed here and not at the end: an event stream lasts for hours.
                slot.release()
            await send(message)

        try:
            await self._app(scope, receive_all, send_on)
        finally:
            slot.release()


class _RequestSlot:
    """Slot of the fair queue that belongs to one request; taken at most once and freed at most once."""

    def __init__(self, queue: FairQueue, sender: str) -> None:
        self._queue, self._sender = queue, sender
        self._is_released = self._is_held = False

    async def take(self) -> None:
        # Never taken again after the response began: a handler may read the rest of the body then.
        if not self._is_released and not self._is_held:
            await self._queue.take(self._sender)
            self._is_held = True

    def release(self) -> None:
        if self._is_held:
            self._queue.release(self._sender)
        self._is_held, self._is_released = False, True
