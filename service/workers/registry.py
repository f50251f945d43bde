"""Register workers, administer them, and list them."""

import logging
import secrets
from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import partial

from sqlalchemy.orm import Session

from shardtune.api_schemas.machines.workers import Worker, WorkerPage
from shardtune.api_schemas.studies.study_state import StudyPhase
from shardtune.api_schemas.trials.leases import Registered, Registration
from shardtune.api_schemas.trials.trial import RunPurpose
from shardtune.db.queries import keys, leases, workers
from shardtune.db.tables.studies import StudyRow
from shardtune.db.tables.trials import RunRow
from shardtune.db.tables.workers import WorkerRow
from shardtune.service.http import paging
from shardtune.service.http.errors import Conflict, NotFound
from shardtune.service.http.idempotent_requests import NO_KEY, IdempotencyKey
from shardtune.service.lifecycle.expiry import end_lost_attempt
from shardtune.service.process.context import Context
from shardtune.service.workers import (
    compatibility,
    protocol_versions,
    worker_limits,
)

log = logging.getLogger(__name__)

_SESSION_BYTES = 24


def register(context: Context, registration: Registration, idempotency: IdempotencyKey = NO_KEY) -> Registered:
    """Register a worker. A new start of a known worker gets a new session, and ends the runs of the worker's former
    session.

    Raises:
        WrongProtocol: worker and service speak no common protocol version.
        Conflict: a worker of another API key has the name, or the session is not the worker's present one.
    """
    protocol_version = protocol_versions.agree(registration)
    # Runs are ended in transactions of their own below: a study is locked before its workers everywhere (note [lock
    # order]).
    settings, sender, now, name = context.settings, context.principal, context.now(), registration.name
    requested_session, issued = registration.session, secrets.token_urlsafe(_SESSION_BYTES)
    with idempotency.write(context) as session:
        worker_limits.check(context, session, registration, workers.lock_by_name(session, name, sender.project_id))
        worker = workers.put(session, name, issued, registration.inventory, now, sender.project_id, sender.holder_id)
        _check_holder(context, session, worker)
        if requested_session is not None and requested_session != worker.session:
            raise _unknown_session()
        worker.protocol_version = protocol_version
        workers.begin(session, worker, requested_session or issued, registration.inventory, now, sender.holder_id)
        lost_runs = [(run.id, run.worker_session) for run in leases.runs_of_earlier_sessions(session, worker)]
        registered = Registered(
            protocol_version=protocol_version,
            worker_id=worker.id,
            session=worker.session,
            lease_s=settings.lease_s,
            heartbeat_s=settings.heartbeat_s,
        )
        idempotency.answer(session, registered)
    log.info("worker registered", extra={"worker": name, "worker_id": registered.worker_id})
    for run_id, former_session in lost_runs:
        # Only the former session's attempt: since the commit, the run may have ended and been leased to another worker.
        end_lost_attempt(context, run_id, partial(_is_leased_to, former_session), "its worker was restarted")
    return registered


def _is_leased_to(worker_session: str | None, run: RunRow) -> bool:
    return run.worker_session == worker_session


def _check_holder(context: Context, session: Session, worker: WorkerRow) -> None:
    """Check that no other API key that is still valid has registered a worker under this name."""
    # Registering under a name ends the leases of its worker, so a name must not be free for every key of the project.
    # A command's own worker has its state directory in its name, and whoever runs it can write the database anyway.
    if context.principal.is_own_client:
        return
    sender_holder_id = context.principal.holder_id
    if worker.holder_id in (None, sender_holder_id) or not keys.is_held(session, worker.holder_id, context.now()):
        return
    raise Conflict(
        "worker_name_taken",
        f"name ({worker.name}) belongs to a worker of another key; give another --name, or have an administrator free it "
        f"with `shardtune workers free {worker.id}`",
    )


def free_name(context: Context, worker_id: str, idempotency: IdempotencyKey = NO_KEY) -> Worker:
    """Release a worker's name, so that the next API key that registers a worker under this name gets it. Runs of the
    present worker continue until then.

    Raises:
        NotFound: no such worker, or the worker serves more than the sender's project.
    """
    with idempotency.write(context) as session:
        row = _lock_administered(context, session, worker_id)
        row.holder_id = None
        log.info("worker's name freed", extra={"worker": row.name})
        return idempotency.answer(session, _worker_view(context, session, row))


def forget(context: Context, worker_id: str) -> None:
    """Remove a silent worker from all lists and counts. Its measurements are kept, and it may register again.

    Raises:
        NotFound: no such worker, or the worker serves more than the sender's project.
        Conflict: the worker is live.
    """
    now = context.now()
    with context.db.write() as session:
        row = _lock_administered(context, session, worker_id)
        if row.forgotten_at is not None:
            return
        # A live worker would appear again with its next request.
        if row.seen_at >= live_since(context):
            seconds = context.settings.worker_live_s
            raise Conflict("worker_live", f"worker {row.name} is live; stop it, and forget it {seconds:g} s later")
        workers.forget(row, now)
        log.info("worker forgotten", extra={"worker": row.name})


def drain(context: Context, worker_id: str, draining: bool, idempotency: IdempotencyKey = NO_KEY) -> Worker:
    """Stop leasing new runs to a worker, or resume leasing them. The run that the worker executes now may finish.

    Raises:
        NotFound: no such worker, or the worker serves more than the sender's project.
    """
    with idempotency.write(context) as session:
        row = _lock_administered(context, session, worker_id)
        row.is_draining, row.set_aside = draining, None
        log.info("worker drained" if draining else "worker takes work again", extra={"worker": row.name})
        return idempotency.answer(session, _worker_view(context, session, row))


def _lock_administered(context: Context, session: Session, worker_id: str) -> WorkerRow:
    """Lock the row of a worker that the sender may administer. A key for one project may administer workers that
    serve only this project; a key for all projects may administer any worker.
    """
    row = workers.lock(session, worker_id)
    # A worker that serves every project belongs to none, so a key bound to a project cannot administer it.
    if row is None or context.principal.project_id not in (None, row.project_id):
        message = f"worker {worker_id} does not exist"
        raise NotFound("unknown_worker", message, api_remedy="GET /v1/workers lists those that do")
    return row


def _worker_view(context: Context, session: Session, row: WorkerRow) -> Worker:
    running = workers.running_runs(session, context.principal.project_id)
    return _build_view(row, row.seen_at >= live_since(context), running.get(row.id))


def list_workers(context: Context, token: str | None, limit: int) -> WorkerPage:
    """Workers that serve the sender's projects, sorted by name; workers that no longer run are included."""
    project_id = context.principal.project_id
    after = paging.parse_token(token, [project_id], paging.name_and_id)
    with context.db.read() as session:
        running = workers.running_runs(session, project_id)
        live_from = live_since(context)
        fetched = workers.page(session, project_id, after, limit + 1)
        page_rows, next_token = paging.split_page(fetched, limit, [project_id], lambda row: [row.name, row.id])
        return WorkerPage(
            workers=tuple(_build_view(row, row.seen_at >= live_from, running.get(row.id)) for row in page_rows),
            next_page_token=next_token,
        )


def _build_view(row: WorkerRow, is_live: bool, run_id: str | None) -> Worker:
    return Worker(
        worker_id=row.id,
        name=row.name,
        inventory=row.inventory,
        registered_at=row.registered_at,
        seen_at=row.seen_at,
        project_id=row.project_id,
        is_live=is_live,
        is_draining=row.is_draining,
        set_aside=row.set_aside,
        run_id=run_id,
        condition=row.condition,
    )


def live_workers(context: Context, session: Session, project_id: str | None = None) -> Sequence[WorkerRow]:
    """Workers that sent a request recently and may run the studies of a project; by default the sender's project."""
    # Workers of other projects are not even read: their inventories may be long, and there may be thousands.
    return workers.seen_since(session, live_since(context), project_id=project_id or context.principal.home)


def live_fingerprints(context: Context, session: Session, project_id: str) -> Sequence[str]:
    """Keys of the fingerprints (hardware and software versions) of a project's live workers, read without other
    columns.
    """
    return workers.fingerprints_seen_since(session, live_since(context), project_id)


def worker_of_session(context: Context, session: Session, worker_session: str) -> WorkerRow:
    """Worker to which a session id belongs. Each start of a worker begins a new session.

    Raises:
        Conflict: the session is unknown, a newer one replaced it, or the worker serves more than the sender's
            project.
    """
    return _check_session(context, workers.by_session(session, worker_session))


def with_lease(context: Context, session: Session, worker_session: str) -> tuple[WorkerRow, RunRow | None]:
    """Worker to which a session id belongs, and the run leased to this worker, if any.

    Raises:
        Conflict: the session is unknown, a newer one replaced it, or the worker serves more than the sender's
            project.
    """
    worker, leased_run = leases.worker_and_lease(session, worker_session) or (None, None)
    return _check_session(context, worker), leased_run


def _check_session(context: Context, worker: WorkerRow | None) -> WorkerRow:
    if worker is None or context.principal.project_id not in (None, worker.project_id):
        raise _unknown_session()
    return worker


def _unknown_session() -> Conflict:
    """Error for a request with a session id that belongs to no worker, or to an earlier start of a worker."""
    # One text for all cases: it must not reveal whether the session belongs to another project's worker.
    return Conflict(
        "unknown_session",
        "session is not that of a worker's present life: it was never given out, or a newer one replaced it; "
        "register anew with POST /v1/workers",
    )


_LATER_PURPOSES = (
    RunPurpose.RESUME_CHECK,
    RunPurpose.SUSTAINED,
    RunPurpose.TRACE,
    RunPurpose.RECIPE,
    RunPurpose.REHEARSAL,
)
"""Purposes of runs that workers of older releases do not support. A newer worker lists those that it supports in its
inventory.
"""


def understands(worker: WorkerRow, study: StudyRow, run: RunRow) -> bool:
    """Whether a worker's release supports the purpose of a run, and the worker has the packages of the recipes
    (numerical formats and optimizers) that the run compares.
    """
    # A worker of an older release does not list these kinds of tasks, and is not given them (decision 5).
    is_known = run.purpose not in _LATER_PURPOSES or run.purpose in worker.offer.task_kinds
    return is_known and _trains_recipes(worker, study, run.purpose)


def _trains_recipes(worker: WorkerRow, study: StudyRow, purpose: str) -> bool:
    # One worker runs a whole block of recipes, so that it needs the packages of all.
    return purpose != RunPurpose.RECIPE or not compatibility.lacking_recipes(worker.offer, study.spec)


def has_worker_for(
    context: Context, session: Session, study: StudyRow, purpose: RunPurpose, *, besides: str | None = None
) -> bool:
    """Whether a study's runs of a given purpose can be executed: a live worker may run the study and supports this
    purpose, which workers of older releases do not. `besides`: session of a worker that does not count.
    """
    # Only a final comparison asks for such runs; elsewhere the query is saved.
    if study.phase is not StudyPhase.FINAL_COMPARISON:
        return True
    project_ids = (None, study.project_id)
    capable = workers.workers_supporting(session, purpose.value, live_since(context))
    return any(
        worker.project_id in project_ids
        and worker.session != besides
        and compatibility.can_run(worker, study)
        and _trains_recipes(worker, study, purpose)
        for worker in capable
    )


def live_since(context: Context) -> datetime:
    """Earliest time at which a live worker may have sent its last request; a worker whose last request is older does
    not count as live.
    """
    return context.now() - timedelta(seconds=context.settings.worker_live_s)
