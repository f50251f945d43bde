"""Take in workers, and list them."""

import logging
from datetime import datetime, timedelta

from sqlalchemy.orm import Session

from api_schemas.leases import PROTOCOL_VERSION, Registered, Registration, Worker
from db import leases, workers
from db.rows import WorkerRow
from service.context import Context
from service.errors import WrongProtocol
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
    """Refuse a worker of another protocol version."""
    if version != PROTOCOL_VERSION:
        raise WrongProtocol(
            "protocol_version",
            f"protocol_version ({version}) is not the service's ({PROTOCOL_VERSION}); "
            "install the same release of shardtune on both sides",
        )


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
                run_id=running.get(row.id),
            )
            for row in workers.everyone(session)
        ]


def live(context: Context, session: Session) -> list[WorkerRow]:
    """Workers that asked for something lately."""
    return list(workers.seen_since(session, live_since(context)))


def live_since(context: Context) -> datetime:
    """A worker last seen before this moment does not count as live."""
    return context.now() - timedelta(seconds=context.settings.worker_live_s)
