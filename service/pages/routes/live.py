"""Stream that signals changes of a study's page; the script then fetches the page and replaces its parts.

Unlike the study's events, the stream also signals steps inside a run.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from functools import partial

from fastapi import APIRouter, Request, Response
from fastapi.sse import format_sse_event
from sqlalchemy.exc import SQLAlchemyError
from starlette.concurrency import run_in_threadpool

from shardtune.db.queries import overview
from shardtune.service.access import streams
from shardtune.service.pages import cookies, page_access
from shardtune.service.process.context import Context, ContextDep
from shardtune.service.studies.create_and_read import get_study

log = logging.getLogger(__name__)

router = APIRouter()

_POLL_S = 1.0
"""Seconds between two checks for changes of a study whose events are streamed; each check is one indexed query."""
_RECONNECT_MS = 2000


@router.get("/studies/{study_id}/live")
async def follow(request: Request, context: ContextDep, study_id: str) -> Response:
    """Stream the events of a study: `changed` after each change, and `ended` once, after the last change."""
    await run_in_threadpool(_check_access, context, study_id)
    is_still_in = partial(page_access.session_is_valid, context, cookies.read(request, cookies.SESSION))
    changes = _changes(
        context, study_id, request.headers.get("last-event-id"), streams.StreamPermit(context, is_still_in)
    )
    return streams.open_stream(context, request, changes)


async def _changes(
    context: Context, study_id: str, last_sent: str | None, permit: streams.StreamPermit
) -> AsyncIterator[bytes]:
    yield format_sse_event(retry=_RECONNECT_MS)
    # `stopping`: an open stream would hold up a shutdown; `permit`: a revoked key or ended session ends it, too.
    while not context.stopping and await permit.is_valid():
        try:
            state = await run_in_threadpool(_read_pulse, context, study_id)
        except SQLAlchemyError:
            log.warning("stream ended: the database cannot be read", extra={"study": study_id})
            return
        if state is None:
            return
        pulse, has_ended = state
        # The browser sends the last id when it reconnects: an unchanged page is not fetched again.
        if pulse != last_sent:
            last_sent = pulse
            yield format_sse_event(data_str="{}", event="changed", id=pulse)
        if has_ended:
            yield format_sse_event(data_str="{}", event="ended", id=pulse)
            return
        await asyncio.sleep(_POLL_S)


def _check_access(context: Context, study_id: str) -> None:
    with context.db.read() as session:
        get_study(context, session, study_id)


def _read_pulse(context: Context, study_id: str) -> tuple[str, bool] | None:
    with context.db.read() as session:
        return overview.pulse(session, study_id)
