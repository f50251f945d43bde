"""Give a worker a run of one study: one that waits, or a new one.

Queries live in db.queries.leases; what to run next in service.planning.study_plan; in which study to look in service.leasing.choose_study.
"""

import logging
from dataclasses import replace
from datetime import timedelta

from sqlalchemy.orm import Session

from shardtune.api_schemas.leases import Lease
from shardtune.api_schemas.studies import StudyPhase, StudyState
from shardtune.api_schemas.trials import RunPurpose, TrialState
from shardtune.db.queries import leases, studies
from shardtune.db.tables.studies import RunRow, StudyRow, WorkerRow
from shardtune.service.access import retune_budget
from shardtune.service.leasing import lease_message
from shardtune.service.leasing.answers import Busy, Granted, NoneWaits, Reserved
from shardtune.service.lifecycle import advance, transitions
from shardtune.service.planning import calibrations
from shardtune.service.planning.study_plan import Wait
from shardtune.service.planning.study_snapshot import StudySnapshot
from shardtune.service.process.context import Context
from shardtune.service.workers import compatibility
from shardtune.service.workers.registry import has_restart_worker, knows, of_session, reservations

log = logging.getLogger(__name__)

_MOST_RACES = 16
"""Plans that may be overtaken by other processes before the worker is told to ask again."""


def lease_run(
    context: Context, study_id: str, worker_session: str, *, is_background: bool, has_waiting: bool, patience_s: float
) -> Granted | Reserved | Busy:
    """A run of one study: one that waits, else a new one.

    `is_background`: nobody waits for it, and it may spend only what the day has left. `Busy`: somebody else asks there,
    for longer than `patience_s`.
    """
    found = _take_waiting(context, study_id, worker_session, is_background) if has_waiting else NoneWaits()
    if isinstance(found, NoneWaits):
        return _ask(context, study_id, worker_session, is_background, patience_s)
    return found


def _take_waiting(
    context: Context, study_id: str, worker_session: str, is_background: bool
) -> Granted | Reserved | NoneWaits:
    """The first run that waits, or who alone may have it: nothing of the study's history decides about that."""
    with context.db.write() as session:
        study = _held(context, session, study_id, is_background)
        if study is None:
            return Reserved()
        live = live_lease(context, session, worker_session)
        if live is not None:
            return Granted(live)
        run = leases.next_waiting(session, study_id)
        worker = of_session(context, session, worker_session)
        if run is None or not knows(worker, run):
            # Another took it, or the study may have to do without it.
            return NoneWaits()
        return _take(context, session, study, run, worker)


def _ask(
    context: Context, study_id: str, worker_session: str, is_background: bool, patience_s: float
) -> Granted | Reserved | Busy:
    """Sample outside the transaction, commit if the study is still as it was."""
    with context.planner_cache.ask_lock(study_id, context.db, patience_s) as mine:
        if not mine:
            return Busy()
        for _ in range(_MOST_RACES):
            seen = _look(context, study_id, is_background)
            if seen is None:
                return Reserved()
            planned = Wait() if seen.has_work else advance.plan(context, seen, may_ask=True)
            if planned == Wait() and not seen.has_work:
                # Whatever changes this changes the version, which wakes those who wait.
                context.planner_cache.note_idle(study_id, seen.version)
                return Reserved()
            with context.db.write() as session:
                study = _held(context, session, study_id, is_background)
                if study is None:
                    return Reserved()
                live = live_lease(context, session, worker_session)
                if live is not None:
                    return Granted(live)
                if study.version == seen.version:
                    advance.apply(context, session, study, planned)
                run = leases.next_waiting(session, study_id)
                if run is not None:
                    worker = of_session(context, session, worker_session)
                    return _take(context, session, study, run, worker) if knows(worker, run) else Reserved()
                if isinstance(planned, Wait) and study.version == seen.version:
                    return Reserved()
    return Reserved()


def _look(context: Context, study_id: str, is_background: bool) -> StudySnapshot | None:
    """What a study knows and has learnt; None where it may spend no more today."""
    with context.db.read() as session:
        study = studies.get(session, study_id)
        assert study is not None
        if is_background and not retune_budget.admits_run(context, session, study):
            return None
        # Only a search asks the predictor.
        key = study.fingerprint_key if study.phase is StudyPhase.SEARCH else None
        known = calibrations.of(context.planner_cache, session, key)
        return replace(
            advance.look(context, session, study),
            calibrations=known.calibrations,
            hardware=known.hardware,
            has_restart_worker=has_restart_worker(context, session, study),
        )


def _held(context: Context, session: Session, study_id: str, is_background: bool) -> StudyRow | None:
    """The study, held until the transaction ends, if it may get a run."""
    if is_background:
        # Before the study, by note [lock order].
        retune_budget.hold(session)
    study = studies.lock(session, study_id)
    if is_background and not retune_budget.admits_run(context, session, study):
        return None
    return study if study.state is StudyState.RUNNING else None


def _take(context: Context, session: Session, study: StudyRow, run: RunRow, worker: WorkerRow) -> Granted | Reserved:
    """The lease of a waiting run, or who alone may have it."""
    reserved = reservations(context, session, [study], worker) if run.block is not None else {}
    if study.id in reserved:
        return Reserved(reserved[study.id])
    return Granted(_start(context, session, study, run, worker))


def _start(context: Context, session: Session, study: StudyRow, run: RunRow, worker: WorkerRow) -> Lease:
    now = context.now()
    transitions.run(run, TrialState.RUNNING, now)
    if run.trial is not None and run.purpose == RunPurpose.SEARCH:
        transitions.trial(run.trial, TrialState.RUNNING, now)
    leases.start(session, run, worker, now, now + timedelta(seconds=context.settings.lease_s))
    worker.seen_at = now
    if study.fingerprint_key is None:
        study.fingerprint_key = worker.fingerprint_key
    if compatibility.is_refusal(study.reason):
        study.reason = None
    session.flush()
    extra = {"study": study.id, "run": run.id, "attempt": run.attempt, "worker": worker.name, "purpose": run.purpose}
    context.metrics.granted(run.purpose)
    log.info("lease granted", extra=extra | {"trial": run.trial.number if run.trial else None})
    return lease_message.lease(context, study, run)


def live_lease(context: Context, session: Session, worker_session: str) -> Lease | None:
    """The lease the session holds already, renewed."""
    run = leases.held_by(session, worker_session)
    if run is None:
        return None
    until = context.now() + timedelta(seconds=context.settings.lease_s)
    if not leases.write_guarded(session, run.id, run.attempt, worker_session, lease_until=until):
        return None
    study = studies.get(session, run.study_id)
    assert study is not None
    return lease_message.lease(context, study, run)
