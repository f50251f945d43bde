"""A study's events over HTTP."""

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.sse import EventSourceResponse
from starlette.concurrency import run_in_threadpool
from starlette.types import Receive, Scope, Send

from shardtune.api_schemas.events import EventPage
from shardtune.api_schemas.keys import Scope as AccessScope
from shardtune.service.access.auth import requires
from shardtune.service.http.error_codes import problems
from shardtune.service.http.errors import TooMany, invalid
from shardtune.service.process.context import Context, InContext
from shardtune.service.studies import event_stream

router = APIRouter(
    prefix="/v1/studies",
    tags=["events"],
    dependencies=[requires(AccessScope.STUDIES_READ)],
    responses=problems("unknown_study"),
)

_LARGEST = 2**31 - 1
_STREAM_RETRY_S = 10
_RESPONSES: Mapping[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}},
    204: {"description": "Stream: the study has ended and nothing follows; an EventSource stops asking"},
    **problems("too_many_streams"),
}


class _EventStreamResponse(EventSourceResponse):
    """Gives its seat back however it ends, also when the client was gone before it began."""

    def __init__(self, context: Context, client: str, study_id: str, after: int) -> None:
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        super().__init__(event_stream.stream(context, study_id, after), headers=headers)
        self._context, self._client = context, client

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._context.stream_limits.leave(self._client)


@router.get("/{study_id}/events", response_model=EventPage, responses=dict(_RESPONSES))
async def read_events(
    context: InContext,
    request: Request,
    study_id: str,
    after: Annotated[int, Query(ge=0, le=_LARGEST)] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 200,
    last_event_id: Annotated[str | None, Header()] = None,
) -> EventPage | Response:
    """Events after `after` (or `Last-Event-ID`) as JSON; as a stream where `Accept` has `text/event-stream`."""
    after = _number(last_event_id) if last_event_id else after
    is_stream = "text/event-stream" in request.headers.get("accept", "")
    page = await run_in_threadpool(event_stream.page, context, study_id, after, 1 if is_stream else limit)
    if not is_stream:
        return page
    if page.is_last and not page.events:
        return Response(status_code=204)
    client = context.principal.key_id or _address(request)
    settings = context.settings
    if not context.stream_limits.take(client, settings.max_streams_per_client, settings.max_streams):
        raise TooMany(
            "too_many_streams",
            f"this client has {settings.max_streams_per_client} event streams open, or all clients together have "
            f"{settings.max_streams}; close one, or read pages without Accept: text/event-stream",
            _STREAM_RETRY_S,
        )
    return _EventStreamResponse(context, client, study_id, after)


def _address(request: Request) -> str:
    """Whose streams are counted together while there are no keys."""
    return request.client.host if request.client else "unknown"


def _number(last_event_id: str) -> int:
    is_number = len(last_event_id) <= 10 and last_event_id.isascii() and last_event_id.isdigit()
    if not is_number or int(last_event_id) > _LARGEST:
        raise invalid(
            "Last-Event-ID",
            last_event_id,
            f"Last-Event-ID ({last_event_id!r:.80}) is not an event's number; send the id of the last event received",
        )
    return int(last_event_id)
