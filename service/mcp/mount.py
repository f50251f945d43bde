"""Mount the MCP server in the service: streamable HTTP at `/mcp`, behind the keys and limits of the REST API."""

import hmac
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial

from fastapi import FastAPI, Request
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.concurrency import run_in_threadpool
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from shardtune.api_schemas.access.credentials import KeySource
from shardtune.service.access import auth
from shardtune.service.client import ServiceClient
from shardtune.service.http.errors import Conflict
from shardtune.service.http.pre_body_auth import MCP, AuthPrefix, max_body_bytes
from shardtune.service.mcp.app_transport import AppTransport
from shardtune.service.mcp.errors import ToolRejected
from shardtune.service.mcp.product import Product, product_of_service
from shardtune.service.mcp.server import Context, create_server
from shardtune.service.process.context import context_of
from shardtune.service.process.fair_queue import FairQueue
from shardtune.service.process.principal import Principal
from shardtune.service.webhooks.secrets import master_key

_AT_ONCE, _OF_ONE_SENDER = 8, 4
"""Maximum number of tool calls that one process handles at the same time: the first number for all senders together,
the second for one sender."""


class _ServiceHost:
    """Host of an MCP server that runs within the service, at `/mcp`."""

    has_service = True

    def __init__(self, app: FastAPI) -> None:
        self._app = app
        self._queue = FairQueue(_AT_ONCE, _OF_ONE_SENDER)

    @contextmanager
    def product(self, context: Context) -> Iterator[Product]:
        """Yield the functions for one tool call. Their requests to this service carry the API key of the tool's caller
        and no other key."""
        caller = _request_of(context)
        transport = AppTransport(self._app, caller)
        # An empty source of keys: the environment of the service may hold a key, which is not the caller's.
        # No patience: a rejected request must not keep a thread for a minute.
        with ServiceClient(f"{caller.url.scheme}://service", transport, KeySource(), patience_s=0.0) as client:
            yield product_of_service(client, confirmation_key=partial(_confirmation_key, caller))

    @asynccontextmanager
    async def slot(self, context: Context) -> AsyncIterator[None]:
        """Wait until a sender's tool call may run. Tool calls wait in one queue, and the REST requests that they make
        wait in another."""
        async with self._queue.slot(_sender_of(_request_of(context)).sender):
            yield


def _confirmation_key(caller: Request) -> bytes:
    """Return the key that signs confirmation codes for the caller's project; it is the same in every replica.

    Raises:
        ToolRejected: the service has no secret key.
    """
    try:
        key = master_key(context_of(caller).settings)
    except Conflict:
        raise ToolRejected(
            "confirmation (not possible): confirmations are signed with a key of the operator's, and none is set; ask the "
            "operator to set SHARDTUNE_SECRET_KEY (32 characters or more, the same for every replica)"
        ) from None
    # By project, as the service remembers an Idempotency-Key: a code must not start a study in another one as well.
    return hmac.digest(key, f"mcp confirmation {_sender_of(caller).project_id or '*'}".encode(), "sha256")


def _sender_of(caller: Request) -> Principal:
    principal = getattr(caller.state, "sender", None)
    assert isinstance(principal, Principal)
    return principal


def _request_of(context: Context) -> Request:
    request = context.request
    assert isinstance(request, Request)
    return request


class _Endpoint:
    """ASGI application at `/mcp`."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        manager: StreamableHTTPSessionManager = self._app.state.mcp_sessions
        await manager.handle_request(scope, receive, send)


def install(app: FastAPI) -> AuthPrefix:
    """Add the MCP endpoint to the application, and return the function that authenticates a request before its body is
    read."""
    app.router.routes.append(Route(MCP, _Endpoint(app), methods=["POST"], include_in_schema=False))
    return AuthPrefix(MCP, _authenticate)


async def _authenticate(request: Request) -> None:
    """Authenticate the sender of a message, and count the message against its project's limit.

    Raises:
        Unauthorized: a key is required and missing, or invalid.
        TooMany: the limit of requests is exceeded.
    """
    await auth.authenticate_before_body(request)
    sender = request.state.sender
    await run_in_threadpool(auth.count_request, context_of(request), sender)


@asynccontextmanager
async def running(app: FastAPI) -> AsyncIterator[None]:
    """Serve the MCP endpoint while the application runs."""
    # Stateless: any replica can answer any message, and no session outlives its key.
    manager = StreamableHTTPSessionManager(
        create_server(_ServiceHost(app)), json_response=True, stateless=True, max_request_body_size=max_body_bytes(MCP)
    )
    app.state.mcp_sessions = manager
    async with manager.run():
        yield
