"""Give a worker a run of one study: one that waits, or a new one.

Queries live in db.queries.leases; what to run next in service.planning.study_plan; in which study to look in service.leasing.claim.
"""

import logging
from dataclasses import replace
from datetime import timedelta

from sqlalchemy.orm import Session

from shardtune.api_schemas.studies.study import StudyPhase, StudyState
from shardtune.api_schemas.trials.leases import Lease
from shardtune.api_schemas.trials.trial import RunPurpose, TrialState
from shardtune.db.queries import fingerprints, leases, studies, trials
from shardtune.db.queries.studies import OpenStudy
from shardtune.db.tables.studies import RunRow, StudyRow, WorkerRow
from shardtune.service.access import retune_budget
from shardtune.service.leasing import host_exclusivity, lease_message
from shardtune.service.leasing.claim_results import Asking, Busy, Granted, HostBusy, NoneWaits, Reserved
from shardtune.service.lifecycle import advance, transitions
from shardtune.service.planning import calibrations, study_snapshot
from shardtune.service.planning.study_plan import NewResumeRun, Step, Wait
from shardtune.service.planning.study_snapshot import StudySnapshot
from shardtune.service.process.context import Context
from shardtune.service.workers import compatibility
from shardtune.service.workers.registry import has_resume_worker, knows, with_lease
from shardtune.service.workers.reservations import live_among

log = logging.getLogger(__name__)

TOUCH = timedelta(seconds=15)
"""A worker's last-seen time is written this often."""
_MOST_RACES = 16
"""Plans that may be overtaken by other processes before the worker is told to ask again."""


def lease_run(
    context: Context, found: OpenStudy, asking: Asking, *, has_waiting: bool, patience_s: float
) -> Granted | Reserved | Busy | HostBusy:
    """A run of one study: one that waits, else a new one.

    `found`: the study as it was listed just now. `Busy`: somebody else asks there, for longer than `patience_s`.
    """
    given = take_waiting(context, found, asking) if has_waiting else NoneWaits()
    if isinstance(given, NoneWaits):
        return _ask(context, found, asking, patience_s)
    return given


def take_waiting(context: Context, found: OpenStudy, asking: Asking) -> Granted | Reserved | HostBusy | NoneWaits:
    """The first run that waits, or who alone may have it: nothing of the study's history decides about that."""
    with context.db.write() as session:
        study = _held(context, session, found)
        if study is None:
            return Reserved()
        worker, live = with_lease(context, session, asking.session)
        if live is not None and (lease := renewed(context, session, live)) is not None:
            return Granted(lease)
        run = leases.next_waiting(session, study.id)
        if run is None or not knows(worker, run):
            # Another took it, or the study may have to do without it.
            return NoneWaits()
        return _take(context, session, study, run, worker, asking)


def _ask(context: Context, found: OpenStudy, asking: Asking, patience_s: float) -> Granted | Reserved | Busy | HostBusy:
    """Sample outside the transaction, commit if the study is still as it was."""
    study_id = found.study.id
    with context.planner_cache.ask_lock(study_id, context.db, patience_s) as mine:
        if not mine:
            return Busy()
        for race in range(_MOST_RACES):
            seen = _look(context, found, is_first=race == 0)
            if seen is None:
                return Reserved()
            planned = Wait() if seen.has_work else _plan(context, seen)
            if planned == Wait() and not seen.has_work:
                # Whatever changes this changes the version, which wakes those who wait.
                context.planner_cache.note_idle(study_id, seen.version)
                return Reserved()
            answer = _commit(context, found, asking, seen, planned)
            if answer is not None:
                return answer
    return Reserved()


def _commit(
    context: Context, found: OpenStudy, asking: Asking, seen: StudySnapshot, planned: Step
) -> Granted | Reserved | HostBusy | None:
    """Apply what was planned, and give the run that waits then; None: the study has changed since, look again."""
    with context.db.write() as session:
        study = _held(context, session, found)
        if study is None:
            return Reserved()
        worker, live = with_lease(context, session, asking.session)
        if live is not None and (lease := renewed(context, session, live)) is not None:
            return Granted(lease)
        before, is_same = study.version, study.version == seen.version
        made: RunRow | None = None
        run = None if is_same else leases.next_waiting(session, study.id)
        if run is None and (is_same or advance.still_holds(context, session, study, planned, seen)):
            made = advance.apply(context, session, study, planned, seen)
            run = made or leases.next_waiting(session, study.id)
        answer: Granted | Reserved | HostBusy | None = None
        if run is not None:
            answer = _take(context, session, study, run, worker, asking) if knows(worker, run) else Reserved()
    known = seen if is_same else context.planner_cache.snapshot(study.id, before)
    if made is not None and known is not None:
        # Whoever reports or asks next here need not read the whole history again for it.
        context.planner_cache.keep_snapshot(advance.following(known, planned, study.version, made.state))
    if answer is not None:
        return answer
    return Reserved() if isinstance(planned, Wait) and is_same else None


def _look(context: Context, found: OpenStudy, is_first: bool) -> StudySnapshot | None:
    """What a study knows and has learnt; None where it may spend no more today.

    `is_first`: it was listed just now, and is read only where this process does not know it at that version.
    """
    study = found.study
    with context.db.read() as session:
        if found.is_background and not retune_budget.admits_run(context, session, study):
            return None
        known = context.planner_cache.snapshot(study.id, study.version) if is_first else None
        if known is not None:
            seen = study_snapshot.with_open_runs(known, found.open_states)
        else:
            present = studies.get(session, study.id)
            assert present is not None
            study, seen = present, advance.look(context, session, present)
        if any(run.state is TrialState.WAITING for run in seen.restarts):
            seen = replace(seen, has_resume_worker=_has_resume_worker(context, session, study.id))
        if seen.phase is not StudyPhase.SEARCH:
            return seen
        # Only a search asks the predictor.
        learnt = calibrations.of(context.planner_cache, session, study.fingerprint_key, study.project_id)
        return replace(
            seen,
            calibrations=learnt.calibrations,
            hardware=learnt.hardware,
            related=tuple(run for run in learnt.runs if run.study != study.id),
            cores=_cores(context, session, study),
        )


def _cores(context: Context, session: Session, study: StudyRow) -> int | None:
    key = study.fingerprint_key
    if key is None:
        return None
    return context.planner_cache.cores(key, lambda: fingerprints.values(session, [key])[key].cpu_count)


def _plan(context: Context, seen: StudySnapshot) -> Step:
    planned = advance.plan(context, seen, may_ask=True)
    if not isinstance(planned, NewResumeRun):
        return planned
    # Asked only where it matters: whether somebody is there who understands it.
    with context.db.read() as session:
        is_able = _has_resume_worker(context, session, seen.study_id)
    return planned if is_able else advance.plan(context, replace(seen, has_resume_worker=False), may_ask=True)


def _has_resume_worker(context: Context, session: Session, study_id: str) -> bool:
    study = studies.get(session, study_id)
    assert study is not None
    return has_resume_worker(context, session, study)


def _held(context: Context, session: Session, found: OpenStudy) -> StudyRow | None:
    """The study, held until the transaction ends, if it may get a run."""
    if found.is_background:
        # Before the study, by note [lock order].
        retune_budget.hold(session)
    study = studies.lock(session, found.study.id)
    if found.is_background and not retune_budget.admits_run(context, session, study):
        return None
    # What waits of an ended one is a trace.
    return study if study.state is StudyState.RUNNING or not study.state.is_open else None


def _take(
    context: Context, session: Session, study: StudyRow, run: RunRow, worker: WorkerRow, asking: Asking
) -> Granted | Reserved | HostBusy:
    """The lease of a waiting run, or who alone may have it; nothing where the worker's time will hardly be enough."""
    if asking.ends_in_s is not None and lease_message.foreseen_s(context, study, run) > asking.ends_in_s:
        return Reserved()
    begun = trials.began_block(session, run) if run.block is not None else frozenset()
    if begun and worker.id not in begun:
        able = live_among(context, session, study, begun)
        if able:
            return Reserved(able)
    if worker.host_id is not None and not host_exclusivity.admits(context, session, study, run, worker):
        return HostBusy()
    return Granted(_start(context, session, study, run, worker))


def _start(context: Context, session: Session, study: StudyRow, run: RunRow, worker: WorkerRow) -> Lease:
    now = context.now()
    transitions.run(run, TrialState.RUNNING, now)
    if run.trial is not None and run.purpose == RunPurpose.SEARCH:
        transitions.trial(run.trial, TrialState.RUNNING, now)
    leases.start(session, run, worker, now, now + timedelta(seconds=context.settings.lease_s))
    if now - worker.seen_at >= TOUCH:
        worker.seen_at = now
    if study.fingerprint_key is None:
        study.fingerprint_key = worker.fingerprint_key
    if compatibility.is_rejection(study.reason):
        study.reason = None
    extra = {"study": study.id, "run": run.id, "attempt": run.attempt, "worker": worker.name, "purpose": run.purpose}
    context.metrics.granted(run.purpose)
    log.info("lease granted", extra=extra | {"trial": run.trial.number if run.trial else None})
    return lease_message.lease(context, study, run)


def renewed(context: Context, session: Session, run: RunRow) -> Lease | None:
    """The lease the session holds already, renewed; None: it was lost just now."""
    until = context.now() + timedelta(seconds=context.settings.lease_s)
    if not leases.write_guarded(session, run.id, run.attempt, run.worker_session or "", lease_until=until):
        return None
    study = studies.get(session, run.study_id)
    assert study is not None
    return lease_message.lease(context, study, run)
