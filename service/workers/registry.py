"""Take in workers, and list them."""

import logging
import secrets
from collections.abc import Sequence
from datetime import datetime, timedelta

from sqlalchemy.orm import Session

from shardtune.api_schemas.studies.study import StudyPhase
from shardtune.api_schemas.trials.leases import SERVED_VERSIONS, Registered, Registration, Worker, WorkerPage
from shardtune.api_schemas.trials.trial import RunPurpose
from shardtune.db.queries import keys, leases, workers
from shardtune.db.tables.studies import RunRow, StudyRow, WorkerRow
from shardtune.service.http import paging
from shardtune.service.http.errors import Conflict, NotFound, WrongProtocol
from shardtune.service.http.idempotent_requests import ALWAYS, Once
from shardtune.service.lifecycle.expiry import close_lost
from shardtune.service.process.context import Context
from shardtune.service.workers import compatibility, worker_limits

log = logging.getLogger(__name__)

_SESSION_BYTES = 24


def register(context: Context, registration: Registration, once: Once = ALWAYS) -> Registered:
    """Take in a worker. A new life of a known name is given a session and ends what the former one still held.

    Raises:
        Conflict: another key's worker has the name, or the session is not that of this worker's present life.
    """
    check_protocol(registration.protocol_version)
    # Two transactions: a study is locked before its workers everywhere, and here the worker is known first.
    settings, sender, now, name = context.settings, context.principal, context.now(), registration.name
    given, issued = registration.session, secrets.token_urlsafe(_SESSION_BYTES)
    with once.write(context) as session:
        worker_limits.check(context, session, registration, workers.named(session, name, sender.project_id))
        worker = workers.put(session, name, issued, registration.inventory, now, sender.project_id, sender.holder_id)
        _check_holder(context, session, worker)
        if given is not None and given != worker.session:
            raise _unknown_session()
        workers.begin(session, worker, given or issued, registration.inventory, now, sender.holder_id)
        lost = [run.id for run in leases.of_earlier_sessions(session, worker)]
        registered = Registered(
            worker_id=worker.id,
            session=worker.session,
            lease_s=settings.lease_s,
            heartbeat_s=settings.heartbeat_s,
        )
        once.answer(session, registered)
    log.info("worker registered", extra={"worker": name, "worker_id": registered.worker_id})
    for run_id in lost:
        close_lost(context, run_id, lambda run: run.worker_session != registered.session, "its worker was restarted")
    return registered


def _check_holder(context: Context, session: Session, worker: WorkerRow) -> None:
    """A name belongs to the key that registered it: whoever registers under it closes the leases of its worker."""
    mine = context.principal.holder_id
    if worker.holder_id in (None, mine) or not keys.is_held(session, worker.holder_id, context.now()):
        return
    raise Conflict(
        "worker_name_taken",
        f"name ({worker.name}) belongs to a worker of another key; give another --name, or have an administrator free it "
        f"with `shardtune workers free {worker.id}`",
    )


def free(context: Context, worker_id: str, once: Once = ALWAYS) -> Worker:
    """Let the next key that registers under a worker's name have it; what the worker runs goes on until then.

    Raises:
        NotFound: no such worker, or not one of the sender's project alone.
    """
    with once.write(context) as session:
        row = _administered(context, session, worker_id)
        row.holder_id = None
        log.info("worker's name freed", extra={"worker": row.name})
        return once.answer(session, _shown(context, session, row))


def forget(context: Context, worker_id: str) -> None:
    """List a worker that is gone nowhere any more, and count it nowhere; what it measured stays. It may register again.

    Raises:
        NotFound: no such worker, or not one of the sender's project alone.
        Conflict: it is live.
    """
    now = context.now()
    with context.db.write() as session:
        row = _administered(context, session, worker_id)
        if row.forgotten_at is not None:
            return
        if row.seen_at >= live_since(context):
            seconds = context.settings.worker_live_s
            raise Conflict("worker_live", f"worker {row.name} is live; stop it, and forget it {seconds:g} s later")
        workers.forget(row, now)
        log.info("worker forgotten", extra={"worker": row.name})


def check_protocol(version: int) -> None:
    """Reject a worker of a protocol version that is not served (any more, or yet)."""
    if version not in SERVED_VERSIONS:
        raise WrongProtocol(
            "protocol_version",
            f"protocol_version ({version}) is none the service speaks ({' and '.join(map(str, SERVED_VERSIONS))}); "
            "install the same release of shardtune on both sides",
        )


def drain(context: Context, worker_id: str, draining: bool, once: Once = ALWAYS) -> Worker:
    """Give a worker no more work, or give it work again. What it runs may finish.

    Raises:
        NotFound: no such worker, or not one of the sender's project alone.
    """
    with once.write(context) as session:
        row = _administered(context, session, worker_id)
        row.is_draining = draining
        log.info("worker drained" if draining else "worker takes work again", extra={"worker": row.name})
        return once.answer(session, _shown(context, session, row))


def _administered(context: Context, session: Session, worker_id: str) -> WorkerRow:
    """A worker of the sender's project alone; of any project for who sees all. Held until the transaction ends."""
    row = workers.lock(session, worker_id)
    if row is None or context.principal.project_id not in (None, row.project_id):
        raise NotFound("unknown_worker", f"worker {worker_id} does not exist; GET /v1/workers lists those that do")
    return row


def _shown(context: Context, session: Session, row: WorkerRow) -> Worker:
    running = workers.running(session, context.principal.project_id)
    return _view(row, row.seen_at >= live_since(context), running.get(row.id))


def page(context: Context, token: str | None, limit: int) -> WorkerPage:
    """Workers ever registered that serve the sender's projects, by name."""
    only = context.principal.project_id
    after = paging.start(token, [only], paging.name_and_id)
    with context.db.read() as session:
        running = workers.running(session, only)
        oldest = live_since(context)
        found = workers.page(session, only, after, limit + 1)
        rows, following = paging.cut(found, limit, [only], lambda row: [row.name, row.id])
        return WorkerPage(
            workers=tuple(_view(row, row.seen_at >= oldest, running.get(row.id)) for row in rows),
            next_page_token=following,
        )


def _view(row: WorkerRow, is_live: bool, run_id: str | None) -> Worker:
    return Worker(
        worker_id=row.id,
        name=row.name,
        inventory=row.inventory,
        registered_at=row.registered_at,
        seen_at=row.seen_at,
        project_id=row.project_id,
        is_live=is_live,
        is_draining=row.is_draining,
        run_id=run_id,
        condition=row.condition,
    )


def live(context: Context, session: Session, project_id: str | None = None) -> Sequence[WorkerRow]:
    """Workers that asked for something lately and run the studies of a project, by default the sender's."""
    # Those of others are not even read: what they say of themselves may be long, and there may be thousands.
    return workers.seen_since(session, live_since(context), project_id=project_id or context.principal.home)


def live_fingerprints(context: Context, session: Session, project_id: str) -> Sequence[str]:
    """Key of the fingerprint of each of them, without the rest."""
    return workers.fingerprints_seen_since(session, live_since(context), project_id)


def of_session(context: Context, session: Session, worker_session: str) -> WorkerRow:
    """The worker whose present life a session is.

    Raises:
        Conflict: there is none, or a newer session took its place, or it is not one of the sender's project alone.
    """
    return _present(context, workers.by_session(session, worker_session))


def with_lease(context: Context, session: Session, worker_session: str) -> tuple[WorkerRow, RunRow | None]:
    """The same with the run it executes now.

    Raises:
        Conflict: as `of_session`.
    """
    worker, held = leases.worker_and_held(session, worker_session) or (None, None)
    return _present(context, worker), held


def _present(context: Context, worker: WorkerRow | None) -> WorkerRow:
    if worker is None or context.principal.project_id not in (None, worker.project_id):
        raise _unknown_session()
    return worker


def _unknown_session() -> Conflict:
    """Says nothing of the session: to whom it belongs is nobody else's business."""
    return Conflict(
        "unknown_session",
        "session is not that of a worker's present life: it was never given out, or a newer one replaced it; "
        "register anew with POST /v1/workers",
    )


def knows(worker: WorkerRow, run: RunRow) -> bool:
    """Whether the worker's release has heard of the run's kind of task."""
    return run.purpose not in (RunPurpose.RESUME_CHECK, RunPurpose.TRACE) or run.purpose in worker.offer.task_kinds


def has_resume_worker(context: Context, session: Session, study: StudyRow) -> bool:
    """Whether a live worker that may run the study understands the restart task; asked only where it matters."""
    if study.phase is not StudyPhase.FINAL_COMPARISON:
        return True
    project_ids = (None, study.project_id)
    able = workers.understanding(session, "resume_check", live_since(context))
    return any(worker.project_id in project_ids and compatibility.may_run(worker, study) for worker in able)


def live_since(context: Context) -> datetime:
    """A worker last seen before this moment does not count as live."""
    return context.now() - timedelta(seconds=context.settings.worker_live_s)
