"""Serve the tools on stdin and stdout, for one user's agent."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import cached_property

import anyio
from mcp.server.stdio import stdio_server

from shardtune.service.mcp.product import Product
from shardtune.service.mcp.server import Context, create_server

_AT_ONCE = 2
"""Maximum number of tool calls that run at the same time; it is limited because each prediction occupies a CPU core."""


class StdioHost:
    """Host of an MCP server that runs as a process on a user's machine."""

    def __init__(self, product: Product) -> None:
        self._product = product
        self.has_service = product.client is not None

    @cached_property
    def _limiter(self) -> anyio.CapacityLimiter:
        return anyio.CapacityLimiter(_AT_ONCE)

    @contextmanager
    def product(self, _context: Context) -> Iterator[Product]:
        """Functions of Shardtune in this process, which tools use without a service. All calls get the same object."""
        yield self._product

    @asynccontextmanager
    async def slot(self, _context: Context) -> AsyncIterator[None]:
        """Slot for a call."""
        async with self._limiter:
            yield


def serve(product: Product) -> None:
    """Serve until stdin ends."""
    anyio.run(_serve, product)


async def _serve(product: Product) -> None:
    server = create_server(StdioHost(product))
    # While it serves, file descriptor 1 is stderr: what anything prints cannot reach the protocol.
    async with stdio_server() as (incoming, outgoing):
        await server.run(incoming, outgoing, server.create_initialization_options())
