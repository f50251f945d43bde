"""Whose request is handled next: who sends many at once waits for their own, and nobody else waits for them.

A request of many threads is no faster for it: they share one interpreter. So few are handled at a time, and a place
that gets free goes to the sender that has the fewest in hand. What arrives slowly takes no place before it has arrived,
what is streamed none once the answer has begun; questions for work have turns of their own (service.leasing).
"""

from fastapi import FastAPI, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shardtune.service.process.context import context_of
from shardtune.service.process.fair_queue import Turns

AT_ONCE = 8
"""Requests in hand; some of them wait for the database."""
_OF_ONE_SENDER = AT_ONCE // 2
"""So that rows which one sender's requests wait for hold up no other's."""
_WITHOUT = frozenset({"/v1/leases", "/healthz"})
"""Paths that take no turn: one waits for work and has its own, the other costs nothing."""


def install(app: FastAPI) -> None:
    """Let requests take turns; call it before the door is put in front, which rejects without one."""
    app.add_middleware(FairTurns)


class FairTurns:
    """ASGI middleware that holds a turn from a request's end to the beginning of its answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app, self._turns = app, Turns(AT_ONCE, _OF_ONE_SENDER)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in _WITHOUT:
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        turn = _Turn(self._turns, context_of(request).senders.sender_of(scope))
        if request.headers.get("content-length", "0") == "0" and "transfer-encoding" not in request.headers:
            await turn.take()

        async def receive_all() -> Message:
            message = await receive()
            if message["type"] == "http.request" and not message.get("more_body"):
                await turn.take()
            return message

        async def send_on(message: Message) -> None:
            if message["type"] == "http.response.start":
                turn.release()
            await send(message)

        try:
            await self._app(scope, receive_all, send_on)
        finally:
            turn.release()


class _Turn:
    """Taken once and given back once."""

    def __init__(self, turns: Turns, sender: str) -> None:
        self._turns, self._sender = turns, sender
        self._is_over = self._is_held = False

    async def take(self) -> None:
        if not self._is_over and not self._is_held:
            await self._turns.take(self._sender)
            self._is_held = True

    def release(self) -> None:
        if self._is_held:
            self._turns.release(self._sender)
        self._is_held, self._is_over = False, True
