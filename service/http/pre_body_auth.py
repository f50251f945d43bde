"""What is settled before a byte of a body is read: who sends it, and how much of it there may be.

FastAPI reads and parses a body before it asks any dependency, so that nothing in a route could do this. A rejection here
is answered like any other error of the application.
"""

import re
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shardtune.service.process.context import context_of
from shardtune.service.process.fair_queue import Turns

_AT_ONCE, _OF_ONE_SENDER = 12, 4
"""Keys that are looked up at a time: for who has none, this is all that the service does."""

WITH_BODY = ("POST", "PUT", "PATCH")
"""Methods with which a route may read a body."""
API = "/v1/"
"""Where addresses of the API begin; all others are pages or have no body."""

_KIB = 1024
_MOST_BYTES = 64 * _KIB
"""Of a body whose address the table does not name."""
_MOST_VALUES = 50_000
"""Of any body, by its separators: what is said of a mistake takes a kilobyte, and each value may be one. A prediction
for a thousand configurations has half as many."""
_COMPRESSED = r"/v1/runs/[^/]+/traces/[^/]+"
"""A body that nobody parses: its separators are no values."""
_BYTES = tuple(
    (re.compile(pattern), kibibytes * _KIB)
    for pattern, kibibytes in (
        # A model's config.json: the class names of a large classifier are in it.
        (r"/v1/(studies|best:resolve|predictions)|/v1/studies/[^/]+:clone|/new(/calculate)?", 1024),
        # Steps and devices of each rank, and the ends of two outputs.
        (r"/v1/runs/[^/]+/report", 1024),
        # What a rank recorded; the route asks for less where the settings do.
        (_COMPRESSED, 32 * 1024),
        # Devices of a node, and the collectives measured on it.
        (r"/v1/workers", 256),
        # Anybody's.
        (r"/login|/logout", 8),
    )
)

Enter = Callable[[Request], Awaitable[None]]
"""Knows the sender, or raises."""


class Entry(NamedTuple):
    """Who may send to addresses that begin so."""

    prefix: str
    enter: Enter | None
    """None: anybody."""


def install(app: FastAPI, *entries: Entry) -> None:
    """Put the door before the application; the first entry whose prefix fits counts. Call it last: it answers errors as
    the handlers do that are there by then.
    """
    handlers = {kind: handler for kind, handler in app.exception_handlers.items() if kind is not Exception}
    app.add_middleware(_Door, entries=entries)
    app.add_middleware(ExceptionMiddleware, handlers=handlers)


class _Door:
    """ASGI middleware."""

    def __init__(self, app: ASGIApp, entries: tuple[Entry, ...]) -> None:
        self._app, self._entries = app, entries
        self._turns = Turns(_AT_ONCE, _OF_ONE_SENDER)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] not in WITH_BODY:
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        enter = next((entry.enter for entry in self._entries if scope["path"].startswith(entry.prefix)), None)
        if enter is not None:
            async with self._turns.turn(context_of(request).senders.sender_of(scope)):
                await enter(request)
        most = _most_bytes(scope["path"])
        declared = request.headers.get("content-length", "0")
        # Longer numbers are not worth reading.
        if len(declared) > 18 or int(declared) > most:
            raise _too_large(most)
        most_values = most if re.fullmatch(_COMPRESSED, scope["path"]) else _MOST_VALUES
        await self._app(scope, _counted(receive, most, most_values), send)


def _most_bytes(path: str) -> int:
    return next((most for pattern, most in _BYTES if pattern.fullmatch(path)), _MOST_BYTES)


def _counted(receive: Receive, most: int, most_values: int) -> Receive:
    """Counts what arrives, whatever Content-Length says."""
    seen = values = 0

    async def receive_counted() -> Message:
        nonlocal seen, values
        message = await receive()
        body = message.get("body", b"")
        seen += len(body)
        values += sum(map(body.count, (b",", b"[", b"{")))
        if seen > most:
            raise _too_large(most)
        if values > most_values:
            raise HTTPException(413, f"the body has more than {most_values} values, which no request needs; send less")
        return message

    return receive_counted


def _too_large(most: int) -> HTTPException:
    return HTTPException(413, f"the body exceeds the {most} bytes that this address takes; send less")
