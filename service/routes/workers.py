"""Workers over HTTP."""

from fastapi import APIRouter

from api_schemas.leases import Registered, Registration, Worker
from service import workers
from service.context import InContext

router = APIRouter(prefix="/v1/workers", tags=["workers"])


@router.post("")
def register_worker(context: InContext, registration: Registration) -> Registered:
    """Introduce a worker; a new session of a known name takes its place."""
    return workers.register(context, registration)


@router.get("")
def list_workers(context: InContext) -> list[Worker]:
    """All workers ever registered, by name."""
    return workers.everyone(context)
