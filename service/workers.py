"""Take in workers, and list them."""

import logging
from datetime import datetime, timedelta

from sqlalchemy.orm import Session

from api_schemas.leases import SERVED_VERSIONS, Registered, Registration, Worker
from db import leases, workers
from db.rows import RunRow, StudyRow, WorkerRow
from service import matching
from service.context import Context
from service.errors import NotFound, WrongProtocol
from service.expiry import close_lost

log = logging.getLogger(__name__)


def register(context: Context, registration: Registration) -> Registered:
    """Take in a worker. A new session of a known name ends what its former life still held."""
    check_protocol(registration.protocol_version)
    # Two transactions: a study is locked before its workers everywhere, and here the worker is known first.
    with context.db.write() as session:
        worker = workers.put(session, registration.name, registration.session, registration.inventory, context.now())
        worker_id = worker.id
        lost = [run.id for run in leases.of_earlier_sessions(session, worker)]
    log.info("worker registered", extra={"worker": registration.name, "session": registration.session})
    for run_id in lost:
        close_lost(context, run_id, lambda run: run.worker_session != registration.session, "its worker was restarted")
    settings = context.settings
    return Registered(worker_id=worker_id, lease_s=settings.lease_s, heartbeat_s=settings.heartbeat_s)


def check_protocol(version: int) -> None:
    """Refuse a worker of a protocol version that is not served (any more, or yet)."""
    if version not in SERVED_VERSIONS:
        raise WrongProtocol(
            "protocol_version",
            f"protocol_version ({version}) is none the service speaks ({' and '.join(map(str, SERVED_VERSIONS))}); "
            "install the same release of shardtune on both sides",
        )


def drain(context: Context, worker_id: str, draining: bool) -> Worker:
    """Give a worker no more work, or give it work again. What it runs may finish.

    Raises:
        NotFound: no such worker.
    """
    with context.db.write() as session:
        row = workers.lock(session, worker_id)
        if row is None:
            raise NotFound("unknown_worker", f"worker {worker_id} does not exist; GET /v1/workers lists those that do")
        row.is_draining = draining
        log.info("worker drained" if draining else "worker takes work again", extra={"worker": row.name})
    return next(worker for worker in everyone(context) if worker.worker_id == worker_id)


def everyone(context: Context) -> list[Worker]:
    """All workers ever registered, by name."""
    with context.db.read() as session:
        running = workers.running(session)
        oldest = live_since(context)
        return [
            Worker(
                worker_id=row.id,
                name=row.name,
                session=row.session,
                inventory=row.inventory,
                registered_at=row.registered_at,
                seen_at=row.seen_at,
                is_live=row.seen_at >= oldest,
                is_draining=row.is_draining,
                run_id=running.get(row.id),
            )
            for row in workers.everyone(session)
        ]


def live(context: Context, session: Session) -> list[WorkerRow]:
    """Workers that asked for something lately."""
    return list(workers.seen_since(session, live_since(context)))


def has_begun_elsewhere(context: Context, session: Session, study: StudyRow, run: RunRow, worker: WorkerRow) -> bool:
    """Another worker has run a part of the run's block and can go on: a block is compared on the same devices."""
    if run.block is None:
        return False
    begun_by = leases.block_workers(session, run) - {worker.id}
    return any(other.id in begun_by and matching.may_run(other, study) for other in live(context, session))


def live_since(context: Context) -> datetime:
    """A worker last seen before this moment does not count as live."""
    return context.now() - timedelta(seconds=context.settings.worker_live_s)
