"""Read the events of a study: as pages, or as a stream that ends with the study."""

import logging
import time
from collections.abc import AsyncIterator
from functools import partial

from fastapi.sse import KEEPALIVE_COMMENT, format_sse_event
from sqlalchemy.exc import SQLAlchemyError
from starlette.concurrency import run_in_threadpool

from shardtune.api_schemas.notifications.events import Event, EventPage
from shardtune.db.queries import events
from shardtune.service.access import auth, streams
from shardtune.service.process.background import run_every
from shardtune.service.process.context import Context
from shardtune.service.studies.create_and_read import get_study

log = logging.getLogger(__name__)

_PAGE = 200
_RECONNECT_MS = 2000


def list_events(context: Context, study_id: str, after: int, limit: int = _PAGE) -> EventPage:
    """Events of a study whose number is above a given one.

    Raises:
        NotFound: no such study.
    """
    with context.db.read() as session:
        get_study(context, session, study_id)
        # Read the head first: an event written between the two queries then shows as "not the last page".
        head = events.stream_ends(session, [study_id])[study_id]
        rows = events.after(session, study_id, after, limit)
    page_events = tuple(
        Event(study_id=row.study_id, number=row.number, type=row.type, created_at=row.created_at, data=row.data)
        for row in rows
    )
    next_after = page_events[-1].number if page_events else after
    return EventPage(
        events=page_events, next_after=next_after, is_last=head.has_ended and next_after >= head.last_event
    )


async def stream(context: Context, study_id: str, after: int) -> AsyncIterator[bytes]:
    """Stream the events of a study whose number is above a given one, as server-sent events.

    The stream ends with the study, when the reader's key becomes invalid, when the service stops, and when the
    database is unreachable; the reader reconnects with `Last-Event-ID` and misses nothing.
    """
    heartbeat_s = context.settings.stream_heartbeat_s
    permit = streams.StreamPermit(context, partial(auth.is_still_authorized, context))
    yield format_sse_event(retry=_RECONNECT_MS)
    with context.event_signal.watch(study_id) as has_news:
        silent_since_s = time.monotonic()
        must_read = True
        while not context.stopping and await permit.is_valid():
            if must_read or has_news(after):
                try:
                    event_page = await run_in_threadpool(list_events, context, study_id, after)
                except SQLAlchemyError:
                    log.warning("stream ended: the database cannot be read", extra={"study": study_id})
                    return
                for event in event_page.events:
                    yield _encode(event)
                after = event_page.next_after
                if event_page.is_last:
                    return
                must_read = len(event_page.events) == _PAGE
                silent_since_s = time.monotonic() if event_page.events else silent_since_s
                # No wait while pages are full: a reader that comes back after a day catches up at once.
                continue
            # Twice the poll interval bounds the wait, so that a revoked key and a shutdown are noticed in a silent
            # study.
            await context.event_signal.wait_for_poll(context.settings.poll_s * 2)
            must_read = context.event_signal.has_ended(study_id)
            if time.monotonic() - silent_since_s >= heartbeat_s:
                silent_since_s = time.monotonic()
                yield KEEPALIVE_COMMENT


async def keep_polling(context: Context) -> None:
    """Read new events of the watched studies from the database at intervals, until cancelled."""

    async def step() -> None:
        watched = context.event_signal.watched()
        if watched:
            context.event_signal.update(await run_in_threadpool(_read_heads, context, watched))

    await run_every(context.settings.poll_s, looking_for_news_of_studies=step)


def _read_heads(context: Context, study_ids: tuple[str, ...]) -> dict[str, events.StreamEnd]:
    with context.db.read() as session:
        return events.stream_ends(session, study_ids)


def _encode(event: Event) -> bytes:
    return format_sse_event(data_str=event.model_dump_json(), event=event.type, id=str(event.number))
