"""The worker's side of a run over HTTP."""

from fastapi import APIRouter, Request, Response
from starlette.concurrency import run_in_threadpool

from shardtune.api_schemas.leases import Heartbeat, HeartbeatAnswer, Lease, LeaseRequest, Report, ReportAnswer
from shardtune.service.access.actions import Action
from shardtune.service.access.auth import requires
from shardtune.service.http.error_codes import problems
from shardtune.service.leasing import long_poll, renew_and_report
from shardtune.service.process.context import InContext

router = APIRouter(
    prefix="/v1",
    tags=["leases"],
    dependencies=[requires(Action.LEASE)],
    responses=problems("protocol_version", "unknown_session"),
)


@router.post("/leases", response_model=Lease, responses={204: {"description": "No work within `wait_s`"}})
async def ask_for_lease(context: InContext, request: Request, body: LeaseRequest) -> Lease | Response:
    """Work for a worker session; asking again returns its live lease."""
    lease = await long_poll.lease(context, request, body)
    return Response(status_code=204) if lease is None else lease


@router.post("/runs/{run_id}/heartbeat", responses=problems("unknown_run"))
async def renew_lease(context: InContext, run_id: str, body: Heartbeat) -> HeartbeatAnswer:
    """Renew a lease; the answer says whether to go on."""
    # One thread for all of it; FastAPI would take a second one to look at the answer.
    return await run_in_threadpool(renew_and_report.renew, context, run_id, body)


@router.post(
    "/runs/{run_id}/report",
    responses=problems("unknown_run", "unknown_session", "lease_lost", "report_differs"),
)
async def report_end(context: InContext, run_id: str, body: Report) -> ReportAnswer:
    """Deliver the end of an attempt; the same report again is harmless."""
    return await run_in_threadpool(renew_and_report.finish, context, run_id, body)
