"""Authenticate the sender and limit the body's size before a byte of the body is read.

FastAPI reads and parses a body before it asks any dependency, so no route could do this. Rejections are answered like
any other error of the application.
"""

import re
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shardtune.service.http.errors import ApiError
from shardtune.service.process.context import context_of
from shardtune.service.process.fair_queue import FairQueue

# For a stranger without a valid key this is all the work that the service does, so it is bounded.
_AT_ONCE, _OF_ONE_SENDER = 12, 4
"""Maximum number of API keys that are checked in the database at the same time: first for all senders together, then
for one sender.
"""

WITH_BODY = ("POST", "PUT", "PATCH")
"""HTTP methods for which a route may read a request body; the bodies of other requests are not read."""
API = "/v1/"
"""Path prefix of the REST API. Requests to other addresses are for pages, or have no body."""
MCP = "/mcp"
"""Address of the MCP server, where a service has one."""

_KIB = 1024
DEFAULT_MAX_BYTES = 64 * _KIB
"""Maximum size in bytes of a request body, except for the paths in `_MAX_BYTES_BY_PATH`."""
# Each value may be a mistake, whose description takes about a kilobyte. A prediction for a thousand configurations has
# half as many values.
_MAX_VALUES = 50_000
"""Maximum number of values in a request body, estimated by counting its separators."""
OCTET_STREAM = "application/octet-stream"
"""Media type of compressed request bodies (traces). Their path accepts no other type: JSON of that size would take
gigabytes when it is parsed.
"""
_MAX_SHOWN = 80
_COMPRESSED = r"/v1/runs/[^/]+/traces/[^/]+"
"""Path to which compressed request bodies (traces) are sent; the values in them are not counted because nobody parses
them.
"""
_WITH_WORKLOAD = r"/v1/(studies|best:resolve|predictions|plans)|/v1/studies/[^/]+:clone|/(new(/calculate)?|plans)"
"""Paths of requests whose bodies may be larger than usual, because they may contain a model's config.json and the
lengths of samples.
"""
_FEWER_LENGTHS = "count equal lengths of samples (workload.data.lengths) into [length, samples] pairs, or send less"
_MAX_BYTES_BY_PATH = tuple(
    (re.compile(pattern), kibibytes * _KIB)
    for pattern, kibibytes in (
        # A model's config.json: the class names of a large classifier are in it.
        (_WITH_WORKLOAD, 1024),
        # A call with a model's config.json.
        (MCP, 1024),
        # Steps and devices of each rank, and the ends of two outputs.
        (r"/v1/runs/[^/]+/report", 1024),
        # Raw trace of a rank; the route allows less if the settings do.
        (_COMPRESSED, 32 * 1024),
        # Devices of a node, and the collectives measured on it.
        (r"/v1/workers", 256),
        # Open to senders without a key.
        (r"/login|/logout", 8),
    )
)

Authenticate = Callable[[Request], Awaitable[None]]
"""Function that authenticates the sender of a request, or raises an error."""


class AuthPrefix(NamedTuple):
    """Authentication rule for all addresses that begin with a path prefix."""

    prefix: str
    authenticate: Authenticate | None
    """Function that authenticates the sender of a request. If it is None, anybody may send requests."""


def install(app: FastAPI, *prefixes: AuthPrefix) -> None:
    """Add the middleware to the application. The first entry whose path prefix matches a request applies to it. Call
    this function last, after all error handlers are registered.
    """
    # A middleware is outside the app's own exception handling, so it gets a copy of the handlers that exist now.
    handlers = {kind: handler for kind, handler in app.exception_handlers.items() if kind is not Exception}
    app.add_middleware(_PreBodyAuth, entries=prefixes)
    app.add_middleware(ExceptionMiddleware, handlers=handlers)


class _PreBodyAuth:
    """ASGI middleware that acts on requests with a body before the body is read: it authenticates the sender and
    limits the body's size.
    """

    def __init__(self, app: ASGIApp, entries: tuple[AuthPrefix, ...]) -> None:
        self._app, self._entries = app, entries
        self._queue = FairQueue(_AT_ONCE, _OF_ONE_SENDER)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] not in WITH_BODY:
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        authenticate = next(
            (entry.authenticate for entry in self._entries if scope["path"].startswith(entry.prefix)), None
        )
        if authenticate is not None:
            # Queued fairly: a sender with many requests must not keep others from being authenticated.
            async with self._queue.slot(context_of(request).known_senders.sender_of(scope)):
                await authenticate(request)
        if is_trace(scope["path"]) and _media_type(request) != OCTET_STREAM:
            raise _wrong_media_type(request)
        max_bytes, remedy = max_body_bytes(scope["path"]), _remedy(scope["path"])
        declared = request.headers.get("content-length", "0")
        # A longer number exceeds every limit, and Python limits the digits that int() converts.
        if len(declared) > 18 or int(declared) > max_bytes:
            raise _too_large(max_bytes, remedy)
        max_values = None if is_trace(scope["path"]) else _MAX_VALUES
        await self._app(scope, _limit_body(receive, max_bytes, max_values, remedy), send)


def is_trace(path: str) -> bool:
    """Whether a path is one to which raw traces are sent; their bodies are read piece by piece, and by the route alone."""
    return re.fullmatch(_COMPRESSED, path) is not None


def max_body_bytes(path: str) -> int:
    """Maximum size in bytes of a request body at an address."""
    return next((limit for pattern, limit in _MAX_BYTES_BY_PATH if pattern.fullmatch(path)), DEFAULT_MAX_BYTES)


def _remedy(path: str) -> str:
    """Remedy for the sender of a body that is too large for a path."""
    return _FEWER_LENGTHS if path == MCP or re.fullmatch(_WITH_WORKLOAD, path) is not None else "send less"


def _media_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def _wrong_media_type(request: Request) -> ApiError:
    given = _media_type(request)[:_MAX_SHOWN] or "none"
    return ApiError(
        "unsupported_media_type", f"content-type ({given}) must be {OCTET_STREAM}: a trace is sent as it is compressed"
    )


def _limit_body(receive: Receive, max_bytes: int, max_values: int | None, remedy: str) -> Receive:
    """Wrap the ASGI `receive` function to count the bytes and separators that really arrive, whatever Content-Length
    claims. If `max_values` is None, separators are not counted.
    """
    received_bytes = values = 0

    async def receive_counted() -> Message:
        nonlocal received_bytes, values
        message = await receive()
        body = message.get("body", b"")
        received_bytes += len(body)
        if received_bytes > max_bytes:
            raise _too_large(max_bytes, remedy)
        if max_values is None:
            return message
        values += sum(map(body.count, (b",", b"[", b"{")))
        if values > max_values:
            raise HTTPException(413, f"the body has more than {max_values} values, which no request needs; {remedy}")
        return message

    return receive_counted


def _too_large(max_bytes: int, remedy: str) -> HTTPException:
    return HTTPException(413, f"the body exceeds the {max_bytes} bytes that this address takes; {remedy}")
