"""Workers over HTTP."""

from fastapi import APIRouter

from api_schemas.leases import Registered, Registration, Worker
from service import workers
from service.context import InContext
from service.errors import Problem

router = APIRouter(prefix="/v1/workers", tags=["workers"])


@router.post("")
def register_worker(context: InContext, registration: Registration) -> Registered:
    """Introduce a worker; a new session of a known name takes its place."""
    return workers.register(context, registration)


@router.get("")
def list_workers(context: InContext) -> list[Worker]:
    """All workers ever registered, by name."""
    return workers.everyone(context)


@router.post("/{worker_id}:drain", responses={404: {"model": Problem}})
def drain_worker(context: InContext, worker_id: str) -> Worker:
    """Give a worker no more work, also after a restart; what it runs may finish."""
    return workers.drain(context, worker_id, draining=True)


@router.post("/{worker_id}:resume", responses={404: {"model": Problem}})
def resume_worker(context: InContext, worker_id: str) -> Worker:
    """Give a drained worker work again."""
    return workers.drain(context, worker_id, draining=False)
