"""Routes of workers."""

from fastapi import APIRouter, Response

from shardtune.api_schemas.machines.workers import Worker, WorkerPage
from shardtune.api_schemas.protocol import Incoming
from shardtune.api_schemas.trials.leases import Registered, Registration
from shardtune.service.access.actions import Action
from shardtune.service.access.auth import requires
from shardtune.service.http.error_codes import problems
from shardtune.service.http.idempotent_requests import IdempotencyDep
from shardtune.service.http.paging import LimitParam, PageTokenParam
from shardtune.service.process.context import ContextDep
from shardtune.service.workers import registry
from shardtune.service.workers.protocol_versions import written_for

router = APIRouter(prefix="/v1/workers", tags=["workers"])


@router.post(
    "",
    response_model=Registered,
    dependencies=[requires(Action.LEASE)],
    responses=problems(
        "protocol_version", "worker_name_taken", "unknown_session", "too_many_workers", "quota_registrations"
    ),
)
def register_worker(
    context: ContextDep, registration: Incoming[Registration], once: IdempotencyDep
) -> Registered | Response:
    """Register a worker: it gets a session, and runs of its former session are ended.

    A request with the worker's present session updates the worker's inventory.
    """
    registered = registry.register(context, registration, once)
    return written_for(registered.protocol_version, registered)


@router.get("", dependencies=[requires(Action.READ_STUDIES)], responses=problems("invalid_page_token"))
def list_workers(context: ContextDep, limit: LimitParam = 100, page_token: PageTokenParam = None) -> WorkerPage:
    """List all workers that have ever registered, by name."""
    return registry.list_workers(context, page_token, limit)


@router.post("/{worker_id}:drain", dependencies=[requires(Action.DRAIN_WORKER)], responses=problems("unknown_worker"))
def drain_worker(context: ContextDep, worker_id: str, once: IdempotencyDep) -> Worker:
    """Stop leasing new runs to a worker, even after the worker restarts; its running work may finish."""
    return registry.drain(context, worker_id, True, once)


@router.post("/{worker_id}:resume", dependencies=[requires(Action.RESUME_WORKER)], responses=problems("unknown_worker"))
def resume_worker(context: ContextDep, worker_id: str, once: IdempotencyDep) -> Worker:
    """Resume leasing runs to a drained worker."""
    return registry.drain(context, worker_id, False, once)


@router.delete(
    "/{worker_id}",
    status_code=204,
    dependencies=[requires(Action.FORGET_WORKER)],
    responses=problems("unknown_worker", "worker_live"),
)
def forget_worker(context: ContextDep, worker_id: str) -> None:
    """Remove a silent worker from all lists. The worker reappears when it registers again.

    The service does the same with workers that sent no request for SHARDTUNE_KEEP_WORKERS_DAYS.
    """
    registry.forget(context, worker_id)


@router.post("/{worker_id}:free", dependencies=[requires(Action.FREE_WORKER)], responses=problems("unknown_worker"))
def free_worker(context: ContextDep, worker_id: str, once: IdempotencyDep) -> Worker:
    """Release a worker's name from the API key that registered it, so that another key of the project can register a
    worker under this name.
    """
    return registry.free_name(context, worker_id, once)
