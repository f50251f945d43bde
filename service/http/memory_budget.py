"""ASGI middleware that bounds the bytes of request bodies and responses which one process holds in memory.

A body counts by its announced size from the moment it is read until its request ends. A response counts until its
client has read it; it is sent in small pieces, since the server would copy a large one into its own buffer at once.
"""

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shardtune.service.http.errors import ApiError, TooManyRequests
from shardtune.service.http.pre_body_auth import DEFAULT_MAX_BYTES, WITH_BODY, max_body_bytes
from shardtune.service.process.byte_budget import PIECE_BYTES, ByteBudget
from shardtune.service.process.context import context_of
from shardtune.service.process.principal import Principal

_MIB = 1 << 20
_LARGE_BODIES, _SMALL_BODIES, _RESPONSES = 64 * _MIB, 32 * _MIB, 64 * _MIB
"""Memory of one process in bytes for three uses, each with a budget of its own: request bodies above the default size
limit, bodies up to this limit, and responses that clients have not read yet.
"""
_RETRY_S = 5
_WORKER_PATHS = ("/v1/leases", "/v1/runs/", "/v1/workers")
"""Prefixes of the paths that workers use. Workers' requests are accepted even from a sender with too many unread
responses: a rejected heartbeat would cost a run, and responses to workers are small.
"""


def install(app: FastAPI) -> None:
    """Add the memory budget to the application. Call this function before the fair queue is added, so that a request
    passes the queue first: while it waits there it holds no memory, and the budget is checked when it has its slot.
    """
    app.add_middleware(MemoryBudgetMiddleware)


class MemoryBudgetMiddleware:
    """Middleware that rejects a request if the other requests and unread responses of its sender already occupy as
    much of the process's memory as one sender may use.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._large, self._small = ByteBudget(_LARGE_BODIES), ByteBudget(_SMALL_BODIES)
        self._responses = ByteBudget(_RESPONSES)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        sender = _sender(Request(scope))
        if (rejection := self._unread_rejection(scope, sender)) is not None:
            raise rejection
        size = _body_bytes(scope)
        # Separate budgets: a project's uploads must not displace its heartbeats.
        bodies = self._large if size > DEFAULT_MAX_BYTES else self._small
        _check_room(bodies, sender, size)

        async def receive_all() -> Message:
            message = await receive()
            # Checked again: many requests may have passed the first check and waited for a slot since.
            is_complete = message["type"] == "http.request" and not message.get("more_body")
            if is_complete and (rejection := self._unread_rejection(scope, sender)) is not None:
                # FastAPI passes on no other exception that reading a body raises.
                raise HTTPException(rejection.status, rejection.detail, dict(rejection.headers or {}))
            return message

        bodies.take(sender, size)
        try:
            await self._app(scope, receive_all if size else receive, _send_in_pieces(send, self._responses, sender))
        finally:
            bodies.release(sender, size)

    def _unread_rejection(self, scope: Scope, sender: str) -> ApiError | None:
        if self._responses.has_room(sender, 0) or scope["path"].startswith(_WORKER_PATHS):
            return None
        unread = self._responses.held(sender)
        return _rejection(f"{unread / _MIB:.1f} MiB of responses to this sender are not read yet; read them", unread)


def _send_in_pieces(send: Send, responses: ByteBudget, sender: str) -> Send:
    """Wrap the ASGI `send` function: large response bodies are sent piece by piece, and count against the memory
    budget until they are sent."""

    async def send_pieces(message: Message) -> None:
        body = message.get("body", b"")
        if len(body) <= PIECE_BYTES:
            await send(message)
            return
        responses.take(sender, len(body))
        try:
            for start in range(0, len(body), PIECE_BYTES):
                has_more = start + PIECE_BYTES < len(body) or message.get("more_body", False)
                await send({**message, "body": body[start : start + PIECE_BYTES], "more_body": has_more})
        finally:
            responses.release(sender, len(body))

    return send_pieces


def _sender(request: Request) -> str:
    """Sender of a request, as authenticated before the request's body was read, or else as known from its earlier
    requests.
    """
    principal = getattr(request.state, "sender", None)
    if isinstance(principal, Principal):
        return principal.sender
    return context_of(request).known_senders.sender_of(request.scope)


def _body_bytes(scope: Scope) -> int:
    """Bytes of memory that a request's body may take: its Content-Length, or the size limit of its path if the length
    is not announced.
    """
    headers = dict(scope["headers"])
    if scope["method"] not in WITH_BODY:
        return 0
    # The body's check before this one has rejected larger announcements.
    return max_body_bytes(scope["path"]) if b"transfer-encoding" in headers else int(headers.get(b"content-length", 0))


def _check_room(bodies: ByteBudget, sender: str, size: int) -> None:
    """Check that a request's body still fits into the memory budget.

    Raises:
        ApiError: 429 if the sender's own requests fill the budget, 503 if other senders' requests do.
    """
    if size and not bodies.has_room(sender, size):
        held = bodies.held(sender)
        raise _rejection(
            f"the body ({size / _MIB:.1f} MiB) exceeds the memory that is free for this sender, whose other requests "
            f"hold {held / _MIB:.1f} MiB; send fewer at a time",
            held,
        )


def _rejection(detail: str, held: int) -> ApiError:
    text = f"{detail}, and try again in {_RETRY_S} s"
    if held:
        return TooManyRequests("too_many_bytes", text, _RETRY_S)
    return ApiError("memory_busy", text, headers={"Retry-After": str(_RETRY_S)})
