"""Hold a worker's question for work open, in async code; a thread is taken only for each claim."""

import time
from functools import partial

from fastapi import Request
from starlette.concurrency import run_in_threadpool

from shardtune.api_schemas.trials.leases import Lease, LeaseRequest
from shardtune.db.queries import studies
from shardtune.db.tables.studies import WorkerRow
from shardtune.service.access import auth
from shardtune.service.leasing import claim
from shardtune.service.process.background import run_every
from shardtune.service.process.context import Context


async def lease(context: Context, http: Request, request: LeaseRequest) -> Lease | None:
    """Work for a session within `wait_s`, or None."""
    work_signal = context.work_signal
    asked_s = time.monotonic()
    until_s = asked_s + request.wait_s
    # Who does not wait is told of the moment of the question; of many who ask at once, one looks for all.
    at_once_s = asked_s if request.wait_s == 0 else None
    sender = context.principal.sender
    entry = await work_signal.in_thread(sender, partial(_enter, context, request))
    if isinstance(entry, Lease):
        return entry
    worker: WorkerRow | None = entry.worker
    work_signal.waiting += 1
    try:
        while True:
            # Asked before the turn, too: it is what a hundred who wait do at every change, and costs nothing.
            if work_signal.may_have_work(entry.kind, entry.worker.id, at_once_s):
                async with work_signal.turn(entry.kind):
                    found = await _claim(context, http, request, entry, at_once_s, worker)
                if found is not None:
                    return found
            if context.stopping:
                return None
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                return None
            worker = None  # it may be drained while it waits
            await work_signal.change(min(left_s, context.settings.poll_s * 2))
    finally:
        work_signal.waiting -= 1


def _enter(context: Context, request: LeaseRequest) -> Lease | claim.Idle:
    """The worker's live lease, else the next run of a block that it began: for what nobody else may have it waits for no turn."""
    begun = context.planner_cache.take_begun(request.session)
    entry = claim.check_in(context, request)
    if begun is None or isinstance(entry, Lease):
        return entry
    return claim.claim_begun(context, request, entry.worker, begun) or entry


async def _claim(
    context: Context,
    http: Request,
    request: LeaseRequest,
    entry: claim.Idle,
    at_once_s: float | None,
    worker: WorkerRow | None,
) -> Lease | None:
    """A claim, unless another one has meanwhile answered for it. The caller has the turn of the worker's kind."""
    work_signal, sender = context.work_signal, context.principal.sender
    if context.stopping or not work_signal.may_have_work(entry.kind, entry.worker.id, at_once_s):
        return None
    # Work handed to a connection that is gone would idle until the worker asks again.
    if await http.is_disconnected():
        return None
    seen, began_s = work_signal.seen, time.monotonic()
    found = await work_signal.in_thread(sender, partial(_look, context, request, worker))
    if isinstance(found, claim.Idle):
        work_signal.found_nothing(found.kind, seen, found.reserved, began_s)
        return None
    return found


def _look(context: Context, request: LeaseRequest, worker: WorkerRow | None) -> Lease | claim.Idle | None:
    """What a claim comes to; None where the key was revoked while it waited, which the next question is told."""
    if worker is None and not auth.is_still_good(context):
        return None
    return claim.claim(context, request, worker)


async def keep_looking(context: Context) -> None:
    """Tell the work_signal what changed, as long as somebody waits; until cancelled."""

    async def step() -> None:
        if context.work_signal.waiting:
            context.work_signal.update(await run_in_threadpool(_versions, context))

    await run_every(context.settings.poll_s, looking_for_changes_of_studies=step)


def _versions(context: Context) -> dict[str, int]:
    with context.db.read() as session:
        return studies.running_versions(session)
