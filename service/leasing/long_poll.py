"""Keep workers' requests for work open in async code (long polling); a thread is used only while a claim runs."""

import time
from functools import partial

from fastapi import Request
from starlette.concurrency import run_in_threadpool

from shardtune.api_schemas.trials.leases import Lease, LeaseRequest
from shardtune.db.queries import studies
from shardtune.db.tables.workers import WorkerRow
from shardtune.service.access import auth
from shardtune.service.leasing import claim
from shardtune.service.process.background import run_every
from shardtune.service.process.context import Context


class _KeyRevoked(Exception):
    """Exception: the API key of a request that waits for work was revoked, or has expired."""


async def lease(context: Context, http: Request, request: LeaseRequest) -> Lease | None:
    """Wait up to `wait_s` seconds for work for a worker session; returns its lease, or None if there was no work."""
    work_signal = context.work_signal
    asked_s = time.monotonic()
    until_s = asked_s + request.wait_s
    # A request that does not wait is answered by the state at its arrival; of many that arrive at once, one claim looks
    # for all.
    at_once_s = asked_s if request.wait_s == 0 else None
    sender = context.principal.sender
    entry = await work_signal.run_in_claim_thread(sender, partial(_check_in, context, request))
    if isinstance(entry, Lease):
        return entry
    worker: WorkerRow | None = entry.worker
    work_signal.waiting_requests += 1
    try:
        while True:
            # Also checked before the lock: each of a hundred waiting requests does it after every change, and it costs
            # nothing.
            if work_signal.may_have_work(entry.worker_kind, entry.worker.id, at_once_s):
                async with work_signal.kind_lock(entry.worker_kind):
                    leased = await _claim_in_turn(context, http, request, entry, at_once_s, worker)
                if leased is not None:
                    return leased
            if context.stopping:
                return None
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                return None
            worker = None  # Read again by the next claim: it may be drained while it waits.
            # Look again even without a change: a budget in seconds runs out without one (see WorkSignal.may_have_work).
            await work_signal.wait_for_change(min(left_s, context.settings.poll_s * 2))
    except _KeyRevoked:
        # The worker's next request is rejected with the reason.
        return None
    finally:
        work_signal.waiting_requests -= 1


def _check_in(context: Context, request: LeaseRequest) -> Lease | claim.Idle:
    """Return the lease that the worker still has, else lease the next run of a comparison block (runs executed
    directly after each other) that the worker has begun.
    """
    # Nobody else may take that run, so this claim does not queue behind other workers of the kind.
    begun = context.planner_cache.take_begun_block(request.session)
    entry = claim.record_request(context, request)
    if begun is None or isinstance(entry, Lease):
        return entry
    return claim.claim_next_in_block(context, request, entry.worker, begun) or entry


async def _claim_in_turn(
    context: Context,
    http: Request,
    request: LeaseRequest,
    entry: claim.Idle,
    at_once_s: float | None,
    worker: WorkerRow | None,
) -> Lease | None:
    """Claim a run for a worker, unless another worker of the same kind (equal hardware and software) was meanwhile
    told that there is no work. The caller holds the lock of this kind.
    """
    work_signal, sender = context.work_signal, context.principal.sender
    if context.stopping or not work_signal.may_have_work(entry.worker_kind, entry.worker.id, at_once_s):
        return None
    # A run leased to a closed connection would stay idle until the worker asks again or its lease expires.
    if await http.is_disconnected():
        return None
    # Noted before the claim: a change that arrives while it runs must wake the worker again.
    changes_before, began_s = work_signal.change_count, time.monotonic()
    result = await work_signal.run_in_claim_thread(sender, partial(_claim_if_authorized, context, request, worker))
    if isinstance(result, claim.Idle):
        work_signal.record_no_work(result.worker_kind, changes_before, result.reserved_worker_ids, began_s)
        return None
    return result


def _claim_if_authorized(context: Context, request: LeaseRequest, worker: WorkerRow | None) -> Lease | claim.Idle:
    """Search for a run for a worker, and lease it to the worker.

    Raises:
        _KeyRevoked: the API key is no longer valid.
    """
    if worker is None and not auth.is_still_authorized(context):
        raise _KeyRevoked
    return claim.claim(context, request, worker)


async def keep_looking(context: Context) -> None:
    """Read the version numbers of the running studies at intervals while any request for work waits, and pass them to
    the work signal, which wakes these requests; runs until cancelled.
    """

    async def step() -> None:
        if context.work_signal.waiting_requests:
            context.work_signal.update(await run_in_threadpool(_read_versions, context))

    await run_every(context.settings.poll_s, looking_for_changes_of_studies=step)


def _read_versions(context: Context) -> dict[str, int]:
    with context.db.read() as session:
        return studies.running_versions(session)
