"""Take back runs whose worker cannot read the lease, and set such workers aside.

A worker of another release says so (`UnreadableLease`), or asks for work again and again while it has a lease.
"""

import logging

from sqlalchemy.orm import Session

from shardtune.api_schemas.trials.leases import ReportAnswer, UnreadableLease
from shardtune.api_schemas.trials.trial import AttemptEnd, TrialState
from shardtune.db.queries import leases, workers
from shardtune.db.tables.trials import AttemptRow, RunRow
from shardtune.service.http.errors import Conflict, NotFound
from shardtune.service.leasing import renew_and_report
from shardtune.service.lifecycle import expiry
from shardtune.service.lifecycle.locked_run import LockedRun
from shardtune.service.process.context import Context
from shardtune.service.workers import compatibility
from shardtune.service.workers.protocol_versions import check_protocol
from shardtune.service.workers.registry import worker_of_session

log = logging.getLogger(__name__)

MOST_LEASE_REPEATS = 5
"""Maximum number of times that the same lease is sent again to a worker that asks for work although it has a lease.
The worker may have missed a few responses; each repetition renews the lease.
"""
_REMEDY = "install the service's release on it and restart it, or `shardtune workers resume` it"


def take_back_unreadable(context: Context, run_id: str, message: UnreadableLease) -> ReportAnswer:
    """Take back a run at once because its worker reports that it cannot read the lease; the run waits for another
    worker.

    Raises:
        NotFound: the run does not exist.
        Conflict: the lease is not the sender's.
    """
    check_protocol(message.protocol_version)
    with context.db.read() as session:
        if context.principal.project_id is not None:
            worker_of_session(context, session, message.session)
        if not renew_and_report.sees_run(context, session, leases.get(session, run_id)):
            raise NotFound("unknown_run", f"run {run_id} does not exist; ask for a lease")
    cause = f"its worker could not read the lease: {message.message}"
    if _take_back(context, run_id, message.attempt, message.session, cause, is_release=True):
        return ReportAnswer(applied=True)
    with context.db.read() as session:
        attempt = leases.attempt_of(session, run_id, message.attempt)
    if attempt is not None and attempt.worker_session == message.session and _was_taken_back(attempt):
        return ReportAnswer(applied=False)
    reason = renew_and_report.why_lost(attempt, message.session)
    raise Conflict("lease_lost", f"attempt ({message.attempt}) of {run_id}: {reason}; nothing was changed")


def _was_taken_back(attempt: AttemptRow) -> bool:
    """Whether the worker of an attempt could not read its lease, and said so before."""
    # Released without a report: a worker that returns a run reports that.
    return attempt.end is AttemptEnd.RELEASED and attempt.report_key is None


def take_back_unread(context: Context, run: RunRow) -> bool:
    """Take back a run whose worker keeps asking for work although its lease was sent again as often as allowed;
    returns whether the run was taken back.
    """
    if run.lease_repeats < MOST_LEASE_REPEATS:
        return False
    cause = f"its worker asked for work {run.lease_repeats + 1} times while it had the lease, and so cannot read it"
    return _take_back(context, run.id, run.attempt, run.worker_session or "", cause, is_release=False)


def _take_back(
    context: Context, run_id: str, attempt: int, worker_session: str, cause: str, *, is_release: bool
) -> bool:
    def is_holder(run: RunRow) -> bool:
        return run.attempt == attempt and run.worker_session == worker_session

    def set_aside(session: Session, locked_run: LockedRun) -> None:
        _set_aside(session, locked_run, worker_session, cause)

    return expiry.end_lost_attempt(context, run_id, is_holder, cause, is_release=is_release, after_end=set_aside)


def _set_aside(session: Session, locked_run: LockedRun, worker_session: str, cause: str) -> None:
    """Give a worker no more runs, and store the reason with the worker and with the study whose lease it could not
    read.
    """
    study, run = locked_run.study, locked_run.run
    assert run.worker_id is not None
    worker = workers.lock(session, run.worker_id)
    # A new session may have begun meanwhile, perhaps of another release.
    if worker is None or worker.session != worker_session:
        return
    # A worker that a person drained stays drained after its restart.
    if not worker.is_draining:
        worker.is_draining = True
        worker.set_aside = f"gets no runs: {cause} (run {run.id}); {_REMEDY}"
    reason = compatibility.waiting_reason(worker, f"gets no runs: {cause}; {_REMEDY}")
    if run.state is TrialState.WAITING and compatibility.may_explain_wait(study, reason):
        study.explain(reason)
    log.warning("worker set aside: %s", cause, extra={"worker": worker.name, "run": run.id})
