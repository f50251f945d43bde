"""Refuse request bodies over a limit as problem+json: the `max_body_size` of FastAPI 0.165 answers in plain text."""

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class BodyLimit:
    """ASGI middleware that counts what arrives, whatever Content-Length says."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app, self._max_bytes = app, max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on; reading its body raises once it is too large."""
        seen = 0

        async def receive_counted() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self._max_bytes:
                raise HTTPException(413, f"the body exceeds {self._max_bytes} bytes (SHARDTUNE_MAX_BODY_BYTES)")
            return message

        await self._app(scope, receive_counted if scope["type"] == "http" else receive, send)
