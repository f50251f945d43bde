"""Routes by which workers lease runs, renew leases and report results."""

from typing import Annotated

from fastapi import APIRouter, Header, Path, Request, Response
from starlette.concurrency import run_in_threadpool

from shardtune.api_schemas.protocol import Incoming
from shardtune.api_schemas.trials.leases import (
    Heartbeat,
    HeartbeatAnswer,
    Lease,
    LeaseRequest,
    Report,
    ReportAnswer,
    UnreadableLease,
)
from shardtune.service.access.actions import Action
from shardtune.service.access.auth import requires
from shardtune.service.http.error_codes import problems
from shardtune.service.leasing import long_poll, renew_and_report, store_trace, unread_leases
from shardtune.service.process.context import ContextDep
from shardtune.service.routes.diagnoses import BYTES
from shardtune.service.workers.protocol_versions import written_for

router = APIRouter(
    prefix="/v1",
    tags=["leases"],
    dependencies=[requires(Action.LEASE)],
    responses=problems("protocol_version", "unknown_session"),
)


@router.post("/leases", response_model=Lease, responses={204: {"description": "No work within `wait_s`"}})
async def ask_for_lease(context: ContextDep, request: Request, body: Incoming[LeaseRequest]) -> Lease | Response:
    """Request work for a worker session. If the session has a live lease, this lease is returned again."""
    lease = await long_poll.lease(context, request, body)
    return Response(status_code=204) if lease is None else written_for(body.protocol_version, lease)


@router.post("/runs/{run_id}/heartbeat", response_model=HeartbeatAnswer, responses=problems("unknown_run"))
async def renew_lease(context: ContextDep, run_id: str, body: Incoming[Heartbeat]) -> HeartbeatAnswer | Response:
    """Renew the lease of a run; the response tells the worker whether to continue."""
    # One thread for all of it: FastAPI would take a second one to validate the response.
    answer = await run_in_threadpool(renew_and_report.renew, context, run_id, body)
    return written_for(body.protocol_version, answer)


@router.post(
    "/runs/{run_id}/report",
    response_model=ReportAnswer,
    responses=problems("unknown_run", "unknown_session", "lease_lost", "report_differs"),
)
async def report_end(context: ContextDep, run_id: str, body: Incoming[Report]) -> ReportAnswer | Response:
    """Report the end of an attempt at a run; repeating the same report changes nothing."""
    answer = await run_in_threadpool(renew_and_report.apply_report, context, run_id, body)
    return written_for(body.protocol_version, answer)


@router.post(
    "/runs/{run_id}/unreadable",
    response_model=ReportAnswer,
    responses=problems("unknown_run", "unknown_session", "lease_lost"),
)
async def report_unreadable_lease(
    context: ContextDep, run_id: str, body: Incoming[UnreadableLease]
) -> ReportAnswer | Response:
    """Hand back a run whose lease the worker cannot read. The worker gets no more runs until it restarts.

    Repeating the request changes nothing.
    """
    answer = await run_in_threadpool(unread_leases.take_back_unreadable, context, run_id, body)
    return written_for(body.protocol_version, answer)


_TRACE = {"requestBody": {"required": True, "content": {"application/octet-stream": {"schema": BYTES}}}}
RankParam = Annotated[int, Path(ge=0, lt=2**31, description="Rank that recorded the trace.")]
SessionParam = Annotated[
    str,
    Header(
        alias="Shardtune-Session",
        max_length=64,
        description="Present session of the worker.",
        examples=["session-0123456789abcdef"],
    ),
]
AttemptParam = Annotated[
    int, Header(alias="Shardtune-Attempt", ge=1, lt=2**31, description="Number of the attempt at the run.")
]


@router.put(
    "/runs/{run_id}/traces/{rank}",
    status_code=204,
    responses=problems("unknown_run", "unknown_session", "lease_lost", "content_too_large", "unsupported_media_type"),
    openapi_extra=_TRACE,
)
async def store_raw_trace(
    context: ContextDep, request: Request, run_id: str, rank: RankParam, session: SessionParam, attempt: AttemptParam
) -> None:
    """Store the raw trace of a rank; workers send it before they report the run's end. Traces that are too large stay
    with the worker.
    """
    declared = request.headers.get("content-length", "0")
    # Checked by the announced size first, so that a body that is too large is not read.
    store_trace.check_size(context, int(declared) if declared.isdecimal() else 0)
    content = bytearray()
    async for chunk in request.stream():
        # In one growing buffer: `request.body()` would hold every byte twice.
        content += chunk
    await run_in_threadpool(store_trace.store, context, run_id, rank, session, attempt, content)
