"""HTTP transport to the service's own application: a tool's request passes every check that any client's does."""

import anyio.from_thread
import httpx
from fastapi import FastAPI
from starlette.requests import Request

_PASSED_ON = frozenset({"authorization", "host", "forwarded", "via", "origin", "sec-fetch-site"})
_PASSED_PREFIX = "x-forwarded-"


class AppTransport(httpx.BaseTransport):
    """httpx transport that sends the REST requests of an MCP tool to this application, with the credentials of the
    tool's caller.

    Therefore the API keys, scopes, projects, rate limits and body limits of the REST API apply to MCP tools, too. Use
    it in a thread that anyio's event loop started.
    """

    def __init__(self, app: FastAPI, caller: Request) -> None:
        client = caller.client
        self._transport = httpx.ASGITransport(
            app, raise_app_exceptions=False, client=(client.host, client.port) if client else ("", 0)
        )
        # Only headers that say who sends: others belong to the message that carried the call.
        self._headers = [
            (name, value)
            for name, value in caller.headers.items()
            if name in _PASSED_ON or name.startswith(_PASSED_PREFIX)
        ]

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request to the application in the event loop, and wait for the response in the calling thread."""
        for name in (*_PASSED_ON, "accept-encoding"):
            request.headers.pop(name, None)
        for name, value in self._headers:
            request.headers[name] = value
        return anyio.from_thread.run(self._send, request)

    async def _send(self, request: httpx.Request) -> httpx.Response:
        response = await self._transport.handle_async_request(request)
        content = b"".join([part async for part in response.stream])  # type: ignore[union-attr]
        return httpx.Response(response.status_code, headers=response.headers, content=content)
