"""Hold a worker's question for work open, in async code; a thread is taken only for each claim."""

import asyncio
import logging
import time

from anyio import to_thread
from fastapi import Request
from starlette.concurrency import run_in_threadpool

from api_schemas.leases import Lease, LeaseRequest
from db import studies
from service import claims
from service.context import Context

log = logging.getLogger(__name__)


async def lease(context: Context, http: Request, request: LeaseRequest) -> Lease | None:
    """Work for a session within `wait_s`, or None."""
    board = context.board
    until_s = time.monotonic() + request.wait_s
    entry = await to_thread.run_sync(claims.check_in, context, request, limiter=board.limiter)
    if isinstance(entry, Lease):
        return entry
    board.waiting += 1
    try:
        while True:
            async with board.turn(entry.kind):
                # Work handed to a connection that is gone would idle until the worker asks again.
                if context.stopping or await http.is_disconnected():
                    return None
                if board.may_have_work(entry.kind, entry.worker_id) or request.wait_s == 0:
                    seen = board.seen
                    found = await to_thread.run_sync(claims.claim, context, request.session, limiter=board.limiter)
                    if isinstance(found, Lease):
                        return found
                    board.found_nothing(found.kind, seen, found.reserved)
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                return None
            await board.change(min(left_s, context.settings.poll_s * 2))
    finally:
        board.waiting -= 1


async def keep_looking(context: Context) -> None:
    """Tell the board what changed, as long as somebody waits; until cancelled."""
    while True:
        await asyncio.sleep(context.settings.poll_s)
        if not context.board.waiting:
            continue
        try:
            context.board.update(await run_in_threadpool(_versions, context))
        except Exception:
            # Whoever waits goes on waiting until the database is back, or their time is over.
            log.exception("changes of studies could not be looked for; trying again")


def _versions(context: Context) -> dict[str, int]:
    with context.db.read() as session:
        return studies.running_versions(session)
