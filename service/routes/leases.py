"""The worker's side of a run over HTTP."""

import asyncio
import time

from fastapi import APIRouter, Request, Response
from starlette.concurrency import run_in_threadpool

from api_schemas.leases import Heartbeat, HeartbeatAnswer, Lease, LeaseRequest, Report, ReportAnswer
from service import leases
from service.context import InContext
from service.errors import Problem

router = APIRouter(prefix="/v1", tags=["leases"], responses={409: {"model": Problem}})


@router.post("/leases", response_model=Lease, responses={204: {"description": "No work within `wait_s`"}})
async def ask_for_lease(context: InContext, request: Request, body: LeaseRequest) -> Lease | Response:
    """Work for a worker session; asking again returns its live lease."""
    until_s = time.monotonic() + body.wait_s
    while True:
        # Waiting costs no thread: one is taken only for each look.
        lease = await run_in_threadpool(leases.grant, context, body)
        if lease is not None:
            return lease
        left_s = until_s - time.monotonic()
        # Work handed to a connection that is gone would idle until the worker asks again.
        if left_s <= 0 or await request.is_disconnected():
            return Response(status_code=204)
        await asyncio.sleep(min(context.settings.poll_s, left_s))


@router.post("/runs/{run_id}/heartbeat")
def renew_lease(context: InContext, run_id: str, body: Heartbeat) -> HeartbeatAnswer:
    """Renew a lease; the answer says whether to go on."""
    return leases.renew(context, run_id, body)


@router.post("/runs/{run_id}/report")
def report_end(context: InContext, run_id: str, body: Report) -> ReportAnswer:
    """Deliver the end of an attempt; the same report again is harmless."""
    return leases.finish(context, run_id, body)
