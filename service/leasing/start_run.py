"""Start a waiting run on a worker, or renew the lease that the worker has."""

import logging
from datetime import timedelta

from sqlalchemy.orm import Session

from shardtune.api_schemas.studies.reasons import StudyReason, StudyReasonCode
from shardtune.api_schemas.studies.study_state import StudyPhase
from shardtune.api_schemas.trials.leases import Lease
from shardtune.api_schemas.trials.trial import OPTIONAL_PURPOSES, RunPurpose, TrialState
from shardtune.db.queries import leases, studies, trials
from shardtune.db.tables.studies import StudyRow
from shardtune.db.tables.trials import RunRow
from shardtune.db.tables.workers import WorkerRow
from shardtune.service.leasing import host_exclusivity, lease_message, run_limits, unread_leases
from shardtune.service.leasing.claim_results import Granted, HostBusy, NoRun, WorkRequest
from shardtune.service.lifecycle import transitions
from shardtune.service.process.context import Context
from shardtune.service.workers import compatibility
from shardtune.service.workers.reservations import live_among

log = logging.getLogger(__name__)

# Written on every request it would cost a write transaction per idle worker every few seconds; workers count as live
# for 90 s.
SEEN_WRITE_INTERVAL = timedelta(seconds=15)
"""Minimum interval between two writes of the time at which a worker sent its last request."""

_WAITS = (StudyReasonCode.WAITS_FOR_WORKER, StudyReasonCode.WORKER_ENDS_TOO_SOON)
"""Codes of reasons why a study waits; the start of a run removes them."""


def start_waiting(
    context: Context, session: Session, study: StudyRow, run: RunRow, worker: WorkerRow, asking: WorkRequest
) -> Granted | NoRun | HostBusy:
    """Lease a worker a run that waits, or return the ids of the workers for which that run is reserved. No run is
    leased if the worker has to end before the run would.
    """
    foreseen_s = lease_message.foreseen_s(context, study, run) if asking.ends_in_s is not None else 0.0
    if asking.ends_in_s is not None and foreseen_s > asking.ends_in_s:
        # Beside a run that executes, nobody waits: another worker has the time. An optional run lets nobody wait.
        is_optional = run.purpose in OPTIONAL_PURPOSES
        if not is_optional and TrialState.RUNNING not in leases.open_states(session, [study.id]).get(study.id, ()):
            ends = f"must end in {asking.ends_in_s:.0f} s, and the next run may take {foreseen_s:.0f} s"
            cause = f"{ends}; start a worker that has more time"
            # A code of its own: one more worker would help, so an autoscaler must start it.
            _explain_wait(study, compatibility.waiting_reason(worker, cause, StudyReasonCode.WORKER_ENDS_TOO_SOON))
        return NoRun()
    inexpressible = lease_message.why_inexpressible(context, study, run, asking.protocol_version)
    if inexpressible is not None:
        _explain_wait(study, compatibility.waiting_reason(worker, inexpressible))
        return NoRun()
    # Runs of one block are compared with each other, so they stay on the devices of the worker that began it as long as
    # that worker lives.
    beginners = trials.workers_of_block(session, run) if run.comparison_block is not None else frozenset()
    if beginners and worker.id not in beginners:
        live_beginners = live_among(context, session, study, beginners)
        if live_beginners:
            return NoRun(live_beginners)
    # Last of all checks: it puts the worker into the host's queue, which must not happen for a run that it may not
    # have.
    if worker.host_id is not None and not host_exclusivity.admits(context, session, study, run, worker):
        return HostBusy()
    return Granted(_start_run(context, session, study, run, worker))


def _explain_wait(study: StudyRow, reason: StudyReason) -> None:
    """Store with a study why a worker gets none of its runs. A study that has ended waits for nothing: its run is a
    trace."""
    if study.state.is_open and compatibility.may_explain_wait(study, reason):
        study.explain(reason)


def _start_run(context: Context, session: Session, study: StudyRow, run: RunRow, worker: WorkerRow) -> Lease:
    now = context.now()
    transitions.run(run, TrialState.RUNNING, now)
    if run.trial is not None and run.purpose == RunPurpose.SEARCH:
        transitions.trial(run.trial, TrialState.RUNNING, now)
    attempt = leases.start(session, run, worker, now, now + timedelta(seconds=context.settings.lease_s))
    if now - worker.seen_at >= SEEN_WRITE_INTERVAL:
        worker.seen_at = now
    if study.fingerprint_key is None:
        study.fingerprint_key = worker.fingerprint_key
    # A service of the revision before stores no code; before the search has ended, it stores no other reason.
    is_searching = study.phase in (StudyPhase.MODEL_SUMMARY, StudyPhase.SEARCH)
    if study.reason_code in _WAITS or (study.reason_code is None and is_searching):
        study.explain(None)
    extra = {"study": study.id, "run": run.id, "attempt": run.attempt, "worker": worker.name, "purpose": run.purpose}
    context.metrics.count_grant(run.purpose)
    log.info("lease granted", extra=extra | {"trial": run.trial.number if run.trial else None})
    lease = lease_message.lease(context, session, study, run)
    run.deadline_at = run_limits.deadline_at(now, lease.deadline_s)
    if lease.quiet_wait is not None:
        attempt.may_wait_s = lease.quiet_wait.most_s
    return lease


def renew_lease(context: Context, session: Session, run: RunRow) -> Lease | None:
    """Renew the lease that a worker session already has. None if the lease was lost just now, or if the lease was sent so
    often that the worker seems unable to read it.
    """
    # An answer that never arrived makes the worker ask again; it must get the run it already holds instead of a second
    # one.
    if run.lease_repeats >= unread_leases.MOST_LEASE_REPEATS:
        return None
    values = {
        "lease_until": context.now() + timedelta(seconds=context.settings.lease_s),
        "lease_repeats": run.lease_repeats + 1,
    }
    if not leases.write_guarded(session, run.id, run.attempt, run.worker_session or "", **values):
        return None
    study = studies.get(session, run.study_id)
    assert study is not None
    return lease_message.lease(context, session, study, run)
