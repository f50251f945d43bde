"""Read a study's events: a page, or a stream that ends when the study has ended."""

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
from shardtune.service.studies.create_and_read import must_exist

log = logging.getLogger(__name__)

_PAGE = 200
_RECONNECT_MS = 2000


def page(context: Context, study_id: str, after: int, limit: int = _PAGE) -> EventPage:
    """Events after a number.

    Raises:
        NotFound: no such study.
    """
    with context.db.read() as session:
        must_exist(context, session, study_id)
        # The head first: what is written between the two queries then shows as "not the last page".
        head = events.heads(session, [study_id])[study_id]
        rows = events.after(session, study_id, after, limit)
    found = tuple(
        Event(study_id=row.study_id, number=row.number, type=row.type, created_at=row.created_at, data=row.data)
        for row in rows
    )
    next_after = found[-1].number if found else after
    return EventPage(events=found, next_after=next_after, is_last=head.has_ended and next_after >= head.last_event)


async def stream(context: Context, study_id: str, after: int) -> AsyncIterator[bytes]:
    """Server-sent events from a number on. Ends with the study, with the reader's key, with the service, and when the
    database is away: the reader comes back with `Last-Event-ID` and misses nothing.
    """
    heartbeat_s = context.settings.stream_heartbeat_s
    permit = streams.StreamPermit(context, partial(auth.is_still_good, context))
    yield format_sse_event(retry=_RECONNECT_MS)
    with context.event_signal.watch(study_id) as has_news:
        silent_since_s = time.monotonic()
        fresh = True
        while not context.stopping and await permit.holds():
            if fresh or has_news(after):
                try:
                    found = await run_in_threadpool(page, context, study_id, after)
                except SQLAlchemyError:
                    log.warning("stream ended: the database cannot be read", extra={"study": study_id})
                    return
                for event in found.events:
                    yield _encoded(event)
                after = found.next_after
                if found.is_last:
                    return
                fresh = len(found.events) == _PAGE
                silent_since_s = time.monotonic() if found.events else silent_since_s
                continue
            await context.event_signal.poll(context.settings.poll_s * 2)
            fresh = context.event_signal.has_ended(study_id)
            if time.monotonic() - silent_since_s >= heartbeat_s:
                silent_since_s = time.monotonic()
                yield KEEPALIVE_COMMENT


async def keep_polling(context: Context) -> None:
    """Look for news of all watched studies until cancelled."""

    async def step() -> None:
        watched = context.event_signal.watched()
        if watched:
            context.event_signal.update(await run_in_threadpool(_heads, context, watched))

    await run_every(context.settings.poll_s, looking_for_news_of_studies=step)


def _heads(context: Context, study_ids: tuple[str, ...]) -> dict[str, events.Head]:
    with context.db.read() as session:
        return events.heads(session, study_ids)


def _encoded(event: Event) -> bytes:
    return format_sse_event(data_str=event.model_dump_json(), event=event.type, id=str(event.number))
