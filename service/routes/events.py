"""Routes of a study's events."""

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request, Response
from starlette.concurrency import run_in_threadpool

from shardtune.api_schemas.notifications.events import EventPage
from shardtune.service.access import streams
from shardtune.service.access.actions import Action
from shardtune.service.access.auth import requires
from shardtune.service.http.error_codes import problems
from shardtune.service.http.errors import invalid
from shardtune.service.process.context import ContextDep
from shardtune.service.studies import event_stream

router = APIRouter(
    prefix="/v1/studies",
    tags=["events"],
    dependencies=[requires(Action.READ_STUDIES)],
    responses=problems("unknown_study"),
)

_MAX_NUMBER = 2**31 - 1
_RESPONSES: Mapping[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}},
    204: {"description": "Stream: the study has ended and no event follows; an EventSource does not reconnect"},
    **problems("too_many_streams"),
}


@router.get("/{study_id}/events", response_model=EventPage, responses=dict(_RESPONSES))
async def read_events(
    context: ContextDep,
    request: Request,
    study_id: str,
    after: Annotated[int, Query(ge=0, le=_MAX_NUMBER)] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 200,
    last_event_id: Annotated[str | None, Header()] = None,
) -> EventPage | Response:
    """Read a study's events after `after` (or `Last-Event-ID`) as JSON, or as a stream if `Accept` contains
    `text/event-stream`.
    """
    # A browser's EventSource sends the number of its last event when it reconnects, and cannot change the query.
    after = _parse_event_id(last_event_id) if last_event_id else after
    is_stream = "text/event-stream" in request.headers.get("accept", "")
    page = await run_in_threadpool(event_stream.list_events, context, study_id, after, 1 if is_stream else limit)
    if not is_stream:
        return page
    # 204 tells an EventSource to stop; any other end of the response makes it reconnect.
    if page.is_last and not page.events:
        return Response(status_code=204)
    return streams.open_stream(context, request, event_stream.stream(context, study_id, after))


def _parse_event_id(last_event_id: str) -> int:
    is_valid_number = len(last_event_id) <= 10 and last_event_id.isascii() and last_event_id.isdigit()
    if not is_valid_number or int(last_event_id) > _MAX_NUMBER:
        raise invalid(
            "Last-Event-ID",
            last_event_id,
            f"Last-Event-ID ({last_event_id!r:.80}) is not an event's number; send the id of the last event received",
        )
    return int(last_event_id)
