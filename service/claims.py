"""Give work to a worker that asks: its live lease, a run that waits, or a new trial.

Queries live in db.leases; what to run next in service.search; what becomes of the lease in service.leases.
"""

import logging
from dataclasses import dataclass, replace
from datetime import timedelta

from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from api_schemas.leases import Lease, LeaseRequest
from api_schemas.studies import StudyPhase, StudyState
from api_schemas.trials import TrialState
from db import keys, leases, studies
from db.rows import RunRow, StudyRow, WorkerRow
from service import experience, matching, moves, quotas, retune_money, steps, study_view, tasks
from service.context import Context
from service.search import Wait
from service.study_view import StudyView
from service.workers import begun_by_others, check_protocol, has_restart_worker, knows, of_session

log = logging.getLogger(__name__)

_MOST_RACES = 16
"""Plans that may be overtaken by other processes before the worker is told to ask again."""
_TOUCH_S = 15.0
"""A waiting worker's last-seen time is written this often."""
_NOBODY: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Idle:
    """A worker that holds nothing and gets nothing now."""

    worker_id: str
    kind: str
    """Equal for workers that can run the same: their hardware, software and project, and whether they are drained."""
    reserved: frozenset[str] = _NOBODY
    """Ids of workers for which something waits that is theirs alone; what this one was told is no answer to them."""


def grant(context: Context, request: LeaseRequest) -> Lease | None:
    """Work for a session: its live lease, else a run that waits, else a new trial; None when there is none now."""
    entry = check_in(context, request)
    found = entry if isinstance(entry, Lease) else claim(context, request.session)
    return found if isinstance(found, Lease) else None


def check_in(context: Context, request: LeaseRequest) -> Lease | Idle:
    """Note that a worker asks; its live lease, if it holds one."""
    check_protocol(request.protocol_version)
    with context.db.read() as session:
        worker = of_session(context, session, request.session)
        held = leases.held_by(session, request.session) is not None
        due = (context.now() - worker.seen_at).total_seconds() >= _TOUCH_S
        idle = _idle(worker)
    if held or due:
        with context.db.write() as session:
            lease = _live_lease(context, session, request.session)
            of_session(context, session, request.session).seen_at = context.now()
        if lease is not None:
            return lease
    return idle


def claim(context: Context, worker_session: str) -> Lease | Idle:
    """A run that waits, else a new trial, of the first study that has one for this worker; users' studies come first."""
    with context.db.read() as session:
        worker = of_session(context, session, worker_session)
        idle = _idle(worker)
        if worker.is_draining:
            return idle
        running = studies.running(session)
        spent = _spent_projects(context, session, {study.project_id for study in running})
        running = [study for study in running if study.project_id not in spent]
        # Idle ones first: what a study is about is read and checked only where there may be work.
        asked = [study for study in running if not context.askers.is_idle(study.id, study.version)]
        served = [study for study in asked if matching.may_run(worker, study)]
        served.sort(key=lambda study: study.purpose != "user")
        refused = [study.id for study in running if matching.fingerprint_differs(worker, study)]
        wanted = (study.errand.worker_id for study in asked if study.errand is not None)
        reserved = {worker_id for worker_id in wanted if worker_id is not None}
    for study_id in refused:
        _note_refusal(context, study_id, worker_session)
    try:
        for study in served:
            found = _claim(context, study.id, worker_session, study.purpose != "user")
            if isinstance(found, Lease):
                return found
            reserved |= found
    except IntegrityError as error:
        # Two requests of one session claimed in two studies; the index let one through, and that is the answer.
        log.warning("claim collided: %s", error.orig, extra={"session": worker_session})
        with context.db.write() as session:
            return _live_lease(context, session, worker_session) or idle
    return replace(idle, reserved=frozenset(reserved - {idle.worker_id}))


def _idle(worker: WorkerRow) -> Idle:
    hardware = worker.inventory.cluster.content_key()
    kinds = worker.inventory.task_kinds
    return Idle(worker.id, f"{hardware} {worker.fingerprint_key} {worker.is_draining} {worker.project_id} {kinds}")


def _spent_projects(context: Context, session: Session, project_ids: set[str]) -> set[str]:
    """Those of the projects that get no run today: their GPU-seconds are used up."""
    rows = [row for row in (keys.project(session, project_id) for project_id in project_ids) if row is not None]
    return {row.id for row in rows if quotas.is_exhausted(session, row.id, row.quotas, context.now())}


def _claim(context: Context, study_id: str, worker_session: str, is_background: bool) -> Lease | frozenset[str]:
    """A run of one study: sample outside the transaction, commit if the study is still as it was.

    `is_background`: nobody waits for it, and it may spend only what the day has left. Without a run: the ids of the
    workers that alone may take the one which waits.
    """
    with context.askers.turn(study_id, context.db) as mine:
        for _ in range(_MOST_RACES if mine else 0):
            seen = _look(context, study_id, is_background)
            if seen is None:
                return _NOBODY
            planned = Wait() if seen.has_work else steps.plan(context, seen, may_ask=True)
            if planned == Wait() and not seen.has_work:
                # Whatever changes this changes the version, which wakes those who wait.
                context.askers.note_idle(study_id, seen.version)
                return _NOBODY
            with context.db.write() as session:
                if is_background:
                    # Held before the study: who spends waits here, so that two replicas do not both spend what is left.
                    retune_money.hold(session)
                study = studies.lock(session, study_id)
                if is_background and not retune_money.admits_run(context, session, study):
                    return _NOBODY
                if study.state is not StudyState.RUNNING:
                    return _NOBODY
                live = _live_lease(context, session, worker_session)
                if live is not None:
                    return live
                if study.version == seen.version:
                    steps.apply(context, session, study, planned)
                run = leases.next_waiting(session, study_id)
                if run is not None:
                    return _take(context, session, study, run, worker_session)
                if isinstance(planned, Wait) and study.version == seen.version:
                    return _NOBODY
    return _NOBODY


def _look(context: Context, study_id: str, is_background: bool) -> StudyView | None:
    """What a study knows and has learnt; None where it may spend no more today."""
    with context.db.read() as session:
        study = studies.get(session, study_id)
        assert study is not None
        if is_background and not retune_money.admits_run(context, session, study):
            return None
        # Only a search asks the predictor.
        key = study.fingerprint_key if study.phase is StudyPhase.SEARCH else None
        known = experience.of(context.askers, session, key)
        return replace(
            study_view.view(session, study),
            calibrations=known.calibrations,
            hardware=known.hardware,
            has_restart_worker=has_restart_worker(context, session, study),
        )


def _take(
    context: Context, session: Session, study: StudyRow, run: RunRow, worker_session: str
) -> Lease | frozenset[str]:
    """The lease of a waiting run, or who alone may have it."""
    worker = of_session(context, session, worker_session)
    if not knows(worker, run):
        return _NOBODY
    return begun_by_others(context, session, study, run, worker) or _start(context, session, study, run, worker)


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
        study, worker = studies.get(session, study_id), of_session(context, session, worker_session)
        assert study is not None
        reason = matching.refusal(worker, study)
        if study.reason is not None:
            return
    with context.db.write() as session:
        study = studies.lock(session, study_id)
        if study.state is StudyState.RUNNING and study.reason is None:
            study.reason = reason
            log.warning(reason, extra={"study": study_id})
