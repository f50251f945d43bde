"""Read a stored trace piece by piece while its client downloads it, so that a client that does not read holds one
piece."""

import asyncio
import time
from collections.abc import AsyncIterator

from starlette.concurrency import run_in_threadpool

from shardtune.db import traces
from shardtune.db.traces import StoredContent
from shardtune.service.process.context import Context

_PIECE_BYTES = 256 << 10
_BYTES_PER_S = 16 << 20
"""Bytes per second that a process reads for each download slot of a sender. Without this limit, fifty downloads that
begin at once would fill their connections' buffers first, and block the event loop for all other requests meanwhile.
"""


class TraceDeleted(RuntimeError):
    """Error: a trace was deleted or replaced while a client downloaded it, and the rest of it cannot be sent."""


async def pieces(context: Context, trace: StoredContent) -> AsyncIterator[bytes]:
    """Yield the bytes of a trace in order.

    Raises:
        TraceDeleted: the trace was deleted or replaced meanwhile.
    """
    for start in range(0, trace.size, _PIECE_BYTES):
        # Each piece has its own slot and transaction: a client that pauses holds neither.
        async with context.trace_reads.slot(context.principal.sender):
            begun_s = time.monotonic()
            content = await run_in_threadpool(_read_piece, context, trace, start)
            await asyncio.sleep(_PIECE_BYTES / _BYTES_PER_S - (time.monotonic() - begun_s))
        if len(content) != min(_PIECE_BYTES, trace.size - start):
            raise TraceDeleted(f"the trace of rank {trace.rank} of {trace.run_id} was deleted while it was downloaded")
        yield content


def _read_piece(context: Context, trace: StoredContent, start: int) -> bytes:
    with context.db.read() as session:
        return traces.piece(session, trace, start, _PIECE_BYTES)
