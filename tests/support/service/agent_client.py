"""Calls of the MCP server by the SDK's own client, as an agent sends them."""

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import anyio
import httpx
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp.server.lowlevel import Server
from mcp.shared._httpx_utils import create_mcp_http_client
from mcp.shared.exceptions import MCPError
from mcp.types import CallToolResult, TextContent

Result = TypeVar("Result")
Work = Callable[[Client], Awaitable[Result]]


def over_http(url: str, work: Work[Result], secret: str | None = None, mode: str = "auto") -> Result:
    """Result of an agent's work over streamable HTTP."""

    async def connect() -> Result:
        headers = {"authorization": f"Bearer {secret}"} if secret else {}
        async with (
            create_mcp_http_client(headers) as http,
            Client(streamable_http_client(f"{url}/mcp", http_client=http), mode=mode) as client,
        ):
            return await work(client)

    return anyio.run(connect)


def over_stdio(command: StdioServerParameters, work: Work[Result], mode: str = "auto") -> Result:
    """Result of an agent's work with a server that it starts."""

    async def connect() -> Result:
        async with Client(command, mode=mode) as client:
            return await work(client)

    return anyio.run(connect)


def in_process(server: Server[Any], work: Work[Result]) -> Result:
    """Result of an agent's work with a server in this process."""

    async def connect() -> Result:
        async with Client(server) as client:
            return await work(client)

    return anyio.run(connect)


def call(name: str, **arguments: Any) -> Work[CallToolResult]:
    """One call of a tool; the client checks its answer against the tool's schema."""

    async def work(client: Client) -> CallToolResult:
        return await client.call_tool(name, arguments)

    return work


def rejected_or(work: Work[Result]) -> Work[Result | str]:
    """Work whose rejection by the protocol is its result: the client's task group would hide the error in a group."""

    async def attempt(client: Client) -> Result | str:
        try:
            return await work(client)
        except MCPError as error:
            return error.message

    return attempt


def text(answer: CallToolResult) -> str:
    """What the agent reads."""
    content = answer.content[0]
    assert isinstance(content, TextContent)
    return content.text


def ask(service: httpx.Client, name: str, secret: str | None = None, **arguments: Any) -> Any:
    """Answer of a service to one call of a tool over HTTP."""
    return over_http(str(service.base_url), call(name, **arguments), secret)
