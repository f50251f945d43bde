"""Grant, renew and finish leases.

Queries live in db.leases; what an end means lives in service.outcomes; what to run next in service.search.
"""

import logging
from dataclasses import dataclass, replace
from datetime import timedelta

from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from api_schemas.failures import FailureKind
from api_schemas.leases import (
    Heartbeat,
    HeartbeatAnswer,
    Lease,
    LeaseRequest,
    Report,
    ReportAnswer,
)
from api_schemas.studies import StudyState
from api_schemas.trials import TrialState
from db import keys, leases, studies, workers
from db.rows import AttemptRow, RunRow, StudyRow, WorkerRow
from service import experience, matching, moves, outcomes, quotas, retune_money, search, steps, tasks, yielding
from service.context import Context
from service.errors import Conflict, NotFound, invalid
from service.outcomes import Ended
from service.search import Wait
from service.workers import check_protocol, has_begun_elsewhere, has_restart_worker, knows

log = logging.getLogger(__name__)

_MOST_RACES = 16
"""Plans that may be overtaken by other processes before the worker is told to ask again."""
_TOUCH_S = 15.0
"""A waiting worker's last-seen time is written this often."""


@dataclass(frozen=True)
class Idle:
    """A session that holds nothing."""

    kind: str
    """Equal for workers that can run the same: their hardware, software and project, and whether they are drained."""


def grant(context: Context, request: LeaseRequest) -> Lease | None:
    """Work for a session: its live lease, else a run that waits, else a new trial; None when there is none now."""
    entry = check_in(context, request)
    return entry if isinstance(entry, Lease) else claim(context, request.session)


def check_in(context: Context, request: LeaseRequest) -> Lease | Idle:
    """Note that a worker asks; its live lease, if it holds one."""
    check_protocol(request.protocol_version)
    with context.db.read() as session:
        worker = _worker(context, session, request.session)
        held = leases.held_by(session, request.session) is not None
        due = (context.now() - worker.seen_at).total_seconds() >= _TOUCH_S
        hardware = worker.inventory.cluster.content_key()
        kinds = worker.inventory.task_kinds
        idle = Idle(f"{hardware} {worker.fingerprint_key} {worker.is_draining} {worker.project_id} {kinds}")
    if held or due:
        with context.db.write() as session:
            lease = _live_lease(context, session, request.session)
            _worker(context, session, request.session).seen_at = context.now()
        if lease is not None:
            return lease
    return idle


def claim(context: Context, worker_session: str) -> Lease | None:
    """A run that waits, else a new trial, of the first study that has one for this worker; users' studies come first."""
    with context.db.read() as session:
        worker = _worker(context, session, worker_session)
        if worker.is_draining:
            return None
        running = studies.running(session)
        spent = _spent_projects(context, session, {study.project_id for study in running})
        running = [study for study in running if study.project_id not in spent]
        # Idle ones first: what a study is about is read and checked only where there may be work.
        asked = [study for study in running if not context.askers.is_idle(study.id, study.version)]
        served = [study for study in asked if matching.may_run(worker, study)]
        served.sort(key=lambda study: study.purpose != "user")
        refused = [study.id for study in running if matching.fingerprint_differs(worker, study)]
    for study_id in refused:
        _note_refusal(context, study_id, worker_session)
    try:
        claims = (_claim(context, study.id, worker_session, study.purpose != "user") for study in served)
        return next((lease for lease in claims if lease is not None), None)
    except IntegrityError as error:
        # Two requests of one session claimed in two studies; the index let one through, and that is the answer.
        log.warning("claim collided: %s", error.orig, extra={"session": worker_session})
        with context.db.write() as session:
            return _live_lease(context, session, worker_session)


def renew(context: Context, run_id: str, heartbeat: Heartbeat) -> HeartbeatAnswer:
    """Extend a lease and store progress; tells the worker to stop when the run is no longer its own."""
    check_protocol(heartbeat.protocol_version)
    now, lease_s = context.now(), context.settings.lease_s
    if context.settings.retune_yields == "at_once":
        yielding.give_up(context, run_id, heartbeat.session)
    values: dict[str, object] = {"lease_until": now + timedelta(seconds=lease_s)}
    if heartbeat.progress is not None:
        values["progress"] = heartbeat.progress
    with context.db.write() as session:
        if context.principal.project_id is not None:
            _worker(context, session, heartbeat.session)
        if leases.write_guarded(session, run_id, heartbeat.attempt, heartbeat.session, **values):
            worker = workers.by_session(session, heartbeat.session)
            if worker is not None:
                worker.seen_at = now
            return HeartbeatAnswer(
                action="continue", lease_s=lease_s, is_draining=worker is not None and worker.is_draining
            )
        if leases.get(session, run_id) is None:
            raise NotFound("unknown_run", f"run {run_id} does not exist; stop its ranks and ask for a lease")
        attempt = leases.attempt_of(session, run_id, heartbeat.attempt)
    return HeartbeatAnswer(action="stop", reason=_why_lost(attempt, heartbeat.session), lease_s=lease_s)


def finish(context: Context, run_id: str, report: Report) -> ReportAnswer:
    """Store the end of an attempt. The same report again is no news; from anyone but the lease's holder, a 409."""
    check_protocol(report.protocol_version)
    with context.db.read() as session:
        if context.principal.project_id is not None:
            _worker(context, session, report.session)
        found = leases.get(session, run_id)
        if found is None:
            raise NotFound("unknown_run", f"run {run_id} does not exist; drop the report and ask for a lease")
        study_id = found.study_id
    with context.db.write() as session:
        study = studies.lock(session, study_id)
        run = leases.lock(session, run_id)
        attempt = leases.attempt_of(session, run_id, report.attempt)
        key = report.content_key()
        if _is_repeated(attempt, report, key):
            return ReportAnswer(applied=False)
        _check_live(run, attempt, report)
        _check_outcome(run, report)
        applied = outcomes.settle(session, study, run, _ended(report, key), context.now())
        assert applied, "checked under the run's lock"
        worker = workers.by_session(session, report.session)
        if worker is not None:
            worker.seen_at = context.now()
        purpose, end = run.purpose, (attempt.end if attempt is not None else None) or "unknown"
    context.metrics.ended(purpose, end, report.gpu_seconds)
    steps.advance(context, study_id)
    return ReportAnswer(applied=True)


def _spent_projects(context: Context, session: Session, project_ids: set[str]) -> set[str]:
    """Those of the projects that get no run today: their GPU-seconds are used up."""
    rows = [row for row in (keys.project(session, project_id) for project_id in project_ids) if row is not None]
    return {row.id for row in rows if quotas.is_exhausted(session, row.id, row.quotas, context.now())}


def _worker(context: Context, session: Session, worker_session: str) -> WorkerRow:
    worker = workers.by_session(session, worker_session)
    if worker is None or not _is_mine(context, worker.project_id):
        raise Conflict(
            "unknown_session",
            f"session ({worker_session}) is not registered, or a newer session of its worker replaced it; "
            "register again with POST /v1/workers",
        )
    return worker


def _is_mine(context: Context, project_id: str | None) -> bool:
    """A key of one project speaks for the workers of that project only, not for those that serve all."""
    return context.principal.project_id in (None, project_id)


def _claim(context: Context, study_id: str, worker_session: str, is_background: bool) -> Lease | None:
    """A run of one study: sample outside the transaction, commit if the study is still as it was.

    `is_background`: nobody waits for it, and it may spend only what the day has left.
    """
    with context.askers.turn(study_id, context.db) as mine:
        for _ in range(_MOST_RACES if mine else 0):
            with context.db.read() as session:
                study = studies.get(session, study_id)
                assert study is not None
                if is_background and not retune_money.admits_run(context, session, study):
                    return None
                known = experience.of(context.askers, session, study.fingerprint_key)
                seen = replace(
                    search.view(session, study),
                    calibrations=known.calibrations,
                    hardware=known.hardware,
                    has_restart_worker=has_restart_worker(context, session, study),
                )
            planned = Wait() if seen.has_work else steps.plan(context, seen, may_ask=True)
            if planned == Wait() and not seen.has_work:
                # Whatever changes this changes the version, which wakes those who wait.
                context.askers.note_idle(study_id, seen.version)
                return None
            with context.db.write() as session:
                if is_background:
                    # Held before the study: who spends waits here, so that two replicas do not both spend what is left.
                    retune_money.hold(session)
                study = studies.lock(session, study_id)
                if is_background and not retune_money.admits_run(context, session, study):
                    return None
                if study.state is not StudyState.RUNNING:
                    return None
                live = _live_lease(context, session, worker_session)
                if live is not None:
                    return live
                if study.version == seen.version:
                    steps.apply(context, session, study, planned)
                run = leases.next_waiting(session, study_id)
                worker = _worker(context, session, worker_session)
                if run is not None:
                    if not knows(worker, run) or has_begun_elsewhere(context, session, study, run, worker):
                        return None
                    return _start(context, session, study, run, worker)
                if isinstance(planned, Wait) and study.version == seen.version:
                    return None
    return None


def _start(context: Context, session: Session, study: StudyRow, run: RunRow, worker: WorkerRow) -> Lease:
    now = context.now()
    moves.run(run, TrialState.RUNNING, now)
    if run.trial is not None and run.purpose == "search":
        moves.trial(run.trial, TrialState.RUNNING, now)
    leases.start(session, run, worker, now, now + timedelta(seconds=context.settings.lease_s))
    worker.seen_at = now
    if study.fingerprint_key is None:
        study.fingerprint_key = worker.fingerprint_key
    if matching.is_refusal(study.reason):
        study.reason = None
    session.flush()
    extra = {"study": study.id, "run": run.id, "attempt": run.attempt, "worker": worker.name, "purpose": run.purpose}
    context.metrics.granted(run.purpose)
    log.info("lease granted", extra=extra | {"trial": run.trial.number if run.trial else None})
    return tasks.lease(context, study, run)


def _live_lease(context: Context, session: Session, worker_session: str) -> Lease | None:
    """The lease the session holds already, renewed."""
    run = leases.held_by(session, worker_session)
    if run is None:
        return None
    until = context.now() + timedelta(seconds=context.settings.lease_s)
    if not leases.write_guarded(session, run.id, run.attempt, worker_session, lease_until=until):
        return None
    study = studies.get(session, run.study_id)
    assert study is not None
    return tasks.lease(context, study, run)


def _note_refusal(context: Context, study_id: str, worker_session: str) -> None:
    """Say on the study why a worker that has the hardware gets none of its runs."""
    with context.db.read() as session:
        study, worker = studies.get(session, study_id), _worker(context, session, worker_session)
        assert study is not None
        reason = matching.refusal(worker, study)
        if study.reason is not None:
            return
    with context.db.write() as session:
        study = studies.lock(session, study_id)
        if study.state is StudyState.RUNNING and study.reason is None:
            study.reason = reason
            log.warning(reason, extra={"study": study_id})


def _is_repeated(attempt: AttemptRow | None, report: Report, key: str) -> bool:
    if attempt is None or attempt.worker_session != report.session or attempt.report_key is None:
        return False
    if attempt.report_key != key:
        raise Conflict(
            "report_differs",
            f"attempt ({report.attempt}) was reported before with another content; the first report stands",
        )
    return True


def _check_live(run: RunRow, attempt: AttemptRow | None, report: Report) -> None:
    is_live = run.state is TrialState.RUNNING and run.attempt == report.attempt and run.worker_session == report.session
    if not is_live:
        reason = _why_lost(attempt, report.session)
        raise Conflict("lease_lost", f"attempt ({report.attempt}) of {run.id}: {reason}; nothing was changed")


def _check_outcome(run: RunRow, report: Report) -> None:
    """A report carries one end, of the kind the run can have."""
    right = run.purpose if run.purpose in ("profile", "restart") else "measurement"
    given = [name for name in ("measurement", "profile", "restart", "failure") if getattr(report, name) is not None]
    if len(given) != 1 or given[0] not in (right, "failure"):
        raise invalid(
            "measurement, profile, restart, failure",
            ", ".join(given) or None,
            f"a report of a {run.purpose} run carries either {right} or failure, but this has "
            f"({', '.join(given) or 'neither'}); send exactly one",
        )


def _ended(report: Report, key: str) -> Ended:
    return Ended(
        gpu_seconds=report.gpu_seconds,
        measurement=report.measurement,
        profile=report.profile,
        restart=report.restart,
        failure=report.failure,
        # A worker that itself says so is leaving in good order and hands the run back.
        is_release=report.failure is not None and report.failure.kind is FailureKind.WORKER_LOST,
        log_tail=report.log_tail,
        report_key=key,
    )


def _why_lost(attempt: AttemptRow | None, worker_session: str) -> str:
    if attempt is None or attempt.worker_session != worker_session:
        return "the lease belongs to another session"
    if attempt.end == TrialState.CANCELLED.value:
        return "cancelled"
    return f"lease lost: the attempt has ended ({attempt.end})"
