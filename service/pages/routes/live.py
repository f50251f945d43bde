"""A stream that says when a study's page has changed; the script then fetches the page and swaps its parts."""

import asyncio
from collections.abc import AsyncIterator

from fastapi import APIRouter, Request
from fastapi.sse import EventSourceResponse, ServerSentEvent
from starlette.concurrency import run_in_threadpool

from db import overview
from service.context import Context, InContext
from service.errors import NotFound

router = APIRouter()

_LOOK_S = 1.0
"""How often a stream looks for changes: a single indexed query."""


@router.get("/studies/{study_id}/live", response_class=EventSourceResponse)
async def follow(request: Request, context: InContext, study_id: str) -> AsyncIterator[ServerSentEvent]:
    """`changed` whenever something on the page has; `ended` once, after the last."""
    told = request.headers.get("last-event-id")
    while not await request.is_disconnected():
        pulse, has_ended = await run_in_threadpool(_look, context, study_id)
        if pulse != told:
            told = pulse
            yield ServerSentEvent(event="changed", data={}, id=pulse)
        if has_ended:
            yield ServerSentEvent(event="ended", data={}, id=pulse)
            return
        await asyncio.sleep(_LOOK_S)


def _look(context: Context, study_id: str) -> tuple[str, bool]:
    with context.db.read() as session:
        found = overview.pulse(session, study_id)
    if found is None:
        raise NotFound("unknown_study", f"There is no study {study_id}.")
    return found
