"""Lease a worker a run of one study: a waiting run or a new run.

Queries are in db.queries.leases; service.planning.study_plan plans the next run; service.leasing.claim chooses the
study.
"""

from dataclasses import replace

from sqlalchemy.orm import Session

from shardtune.api_schemas.studies.study_state import StudyPhase, StudyState
from shardtune.api_schemas.trials.short_steps import SHORT_STEPS_SINCE
from shardtune.api_schemas.trials.trial import OPTIONAL_PURPOSES, RunPurpose
from shardtune.db.queries import fingerprints, leases, studies
from shardtune.db.queries.studies import OpenStudy
from shardtune.db.tables.studies import StudyRow
from shardtune.db.tables.trials import RunRow
from shardtune.service.access import retune_budget
from shardtune.service.leasing.claim_results import Granted, HostBusy, NoRun, NoWaitingRun, StudyBusy, WorkRequest
from shardtune.service.leasing.optional_runs import is_too_long_for_worker, with_obstacle
from shardtune.service.leasing.start_run import renew_lease, start_waiting
from shardtune.service.lifecycle import advance
from shardtune.service.lifecycle.target_projection import with_projection
from shardtune.service.planning import calibrations, study_snapshot
from shardtune.service.planning.study_snapshot import StudySnapshot
from shardtune.service.planning.study_steps import (
    NewRecipeRun,
    NewRehearsalRun,
    NewResumeRun,
    NewSustainedRun,
    NewTrial,
    Step,
    Wait,
)
from shardtune.service.process.context import Context
from shardtune.service.workers.registry import has_worker_for, understands, with_lease
from shardtune.tuner.verdict import short_steps

_MOST_RACES = 16
"""Maximum number of attempts to plan a run while other processes keep changing the study. After that, the worker has
to request work again."""


def lease_run(
    context: Context, open_study: OpenStudy, asking: WorkRequest, *, has_waiting: bool, patience_s: float
) -> Granted | NoRun | StudyBusy | HostBusy:
    """Lease a worker a run of one study: a waiting run if there is one, else a new run.

    `open_study` is the study as the caller has just read it. Returns `StudyBusy` if another process has not finished
    planning the study's next run within `patience_s` seconds.
    """
    # A waiting run needs no plan, so it is taken without the ask lock, which another process may hold for the seconds
    # that sampling takes.
    result = lease_waiting(context, open_study, asking) if has_waiting else NoWaitingRun()
    if isinstance(result, NoWaitingRun):
        return _plan_and_lease(context, open_study, asking, patience_s)
    return result


def lease_waiting(
    context: Context, open_study: OpenStudy, asking: WorkRequest
) -> Granted | NoRun | HostBusy | NoWaitingRun:
    """Lease a worker the first waiting run of a study, without reading the study's history. If that run is reserved
    for other workers, return their ids instead.
    """
    with context.db.write() as session:
        study = _lock_study(context, session, open_study)
        if study is None:
            return NoRun()
        worker, leased_run = with_lease(context, session, asking.session)
        if leased_run is not None and (lease := renew_lease(context, session, leased_run)) is not None:
            return Granted(lease)
        run = leases.next_waiting(session, study.id)
        if (
            run is None
            or not understands(worker, study, run)
            or is_too_long_for_worker(context, session, study, run, asking)
        ):
            # Another took it, or the study may have to do without it.
            return NoWaitingRun()
        return start_waiting(context, session, study, run, worker, asking)


def _plan_and_lease(
    context: Context, open_study: OpenStudy, asking: WorkRequest, patience_s: float
) -> Granted | NoRun | StudyBusy | HostBusy:
    """Plan a study's next run outside of a transaction. Then store the run and lease it, if the study has not changed
    meanwhile.
    """
    study_id = open_study.study.id
    with context.planner_cache.ask_lock(study_id, context.db, patience_s) as has_lock:
        if not has_lock:
            return StudyBusy()
        # Sampling takes up to seconds. Inside the transaction it would hold the study's row for that long, and
        # heartbeats and reports of its other workers would wait.
        for race in range(_MOST_RACES):
            snapshot = _read_snapshot(context, open_study, asking, is_first=race == 0)
            if snapshot is None:
                return NoRun()
            step = Wait() if snapshot.has_work else _plan(context, snapshot, asking)
            if step == Wait() and not snapshot.has_work:
                # Every change that could bring work also raises the version, which wakes the waiting workers.
                context.planner_cache.note_idle(study_id, snapshot.version)
                return NoRun()
            result = _apply_and_lease(context, open_study, asking, snapshot, step)
            if result is not None:
                return result
    return NoRun()


def _apply_and_lease(
    context: Context, open_study: OpenStudy, asking: WorkRequest, snapshot: StudySnapshot, step: Step
) -> Granted | NoRun | HostBusy | None:
    """Apply the planned step to a study, and lease the run that waits afterwards. None if the study has changed since
    the planning, so that the step must be planned again.
    """
    with context.db.write() as session:
        study = _lock_study(context, session, open_study)
        if study is None:
            return NoRun()
        worker, leased_run = with_lease(context, session, asking.session)
        if leased_run is not None and (lease := renew_lease(context, session, leased_run)) is not None:
            return Granted(lease)
        version_before, is_same = study.version, study.version == snapshot.version
        new_run: RunRow | None = None
        # The version moved while the plan was made. A run may wait now that needs no plan, and takes precedence over a
        # new trial.
        run = None if is_same else leases.next_waiting(session, study.id)
        if run is None and (is_same or advance.still_holds(context, session, study, step, snapshot)):
            _choose_short_steps(study, snapshot, step, asking)
            new_run = advance.apply_step(context, session, study, step, snapshot)
            run = new_run or leases.next_waiting(session, study.id)
        result: Granted | NoRun | HostBusy | None = None
        # Without the time for an optional run, the study is planned again and completes without it.
        if run is not None and not is_too_long_for_worker(context, session, study, run, asking):
            result = (
                start_waiting(context, session, study, run, worker, asking)
                if understands(worker, study, run)
                else NoRun()
            )
    # `applied_to` is the state that the new run was added to: the planned one, or what another request cached
    # meanwhile.
    applied_to = snapshot if is_same else context.planner_cache.snapshot(study.id, version_before)
    if new_run is not None and applied_to is not None:
        # Saves the next report or request in this process from reading the whole history again.
        context.planner_cache.keep_snapshot(advance.snapshot_after(applied_to, step, study.version, new_run.state))
    if result is not None:
        return result
    return NoRun() if isinstance(step, Wait) and is_same else None


def _choose_short_steps(study: StudyRow, snapshot: StudySnapshot, step: Step, asking: WorkRequest) -> None:
    """Decide, when a study's first trial is added, whether all its runs time short steps (with fewer micro batches).
    Later trials cannot change this, because losses of short and whole steps are not comparable.
    """
    if not isinstance(step, NewTrial) or snapshot.history or step.prediction is None:
        return
    # A worker of the last release times whole steps, so a study that begins with one does so throughout.
    if asking.protocol_version >= SHORT_STEPS_SINCE:
        speed, workload = step.prediction.tokens_per_s_per_gpu, study.spec.workload
        step_s = None if speed is None else workload.tokens_per_step / speed / study.cluster.world_size
        study.parity_samples = short_steps.parity_samples(study.spec, study.cluster, step_s)


def _read_snapshot(
    context: Context, open_study: OpenStudy, asking: WorkRequest, is_first: bool
) -> StudySnapshot | None:
    """Read a study's snapshot (trials and runs at one version) and the predictor's calibrations. None if the study
    only measures a recommendation again and the day's budget for that is used up.

    `is_first`: the study was listed just now, so a snapshot cached at the listed version is used without reading the
    study again.
    """
    study = open_study.study
    with context.db.read() as session:
        if open_study.is_background and not retune_budget.admits_run(context, session, study):
            return None
        cached = context.planner_cache.snapshot(study.id, study.version) if is_first else None
        if cached is not None:
            snapshot = study_snapshot.with_open_runs(cached, open_study.open_states)
        else:
            row = studies.get(session, study.id)
            assert row is not None
            study, snapshot = row, advance.read_snapshot(context, session, row)
        for purpose in snapshot.waiting_purposes:
            snapshot = _with_workers(context, session, snapshot, purpose, asking)
        if snapshot.phase is not StudyPhase.SEARCH:
            return snapshot
        # Only a search uses the predictor; reading calibrations would cost every validation run a query over 400 runs.
        experience = calibrations.experience_of(context.planner_cache, session, study.fingerprint_key, study.project_id)
        return replace(
            snapshot,
            calibrations=experience.calibrations,
            hardware=experience.hardware,
            other_studies_runs=tuple(run for run in experience.runs if run.study != study.id),
            cpu_count=_cpu_count(context, session, study),
        )


def _cpu_count(context: Context, session: Session, study: StudyRow) -> int | None:
    key = study.fingerprint_key
    if key is None:
        return None
    return context.planner_cache.cpu_count(key, lambda: fingerprints.values(session, [key])[key].cpu_count)


_LATER_PURPOSES: dict[type, RunPurpose] = {
    NewResumeRun: RunPurpose.RESUME_CHECK,
    NewSustainedRun: RunPurpose.SUSTAINED,
    NewRecipeRun: RunPurpose.RECIPE,
    NewRehearsalRun: RunPurpose.REHEARSAL,
}
"""Purpose of the run that each kind of planned step adds, for purposes that older workers may not support."""


def _plan(context: Context, snapshot: StudySnapshot, asking: WorkRequest) -> Step:
    step = with_projection(context, snapshot, advance.plan_step(context, snapshot, may_ask=True))
    purpose = _LATER_PURPOSES.get(type(step))
    if purpose is None:
        return step
    # Checked only here: it takes queries of its own, and few steps are of such purposes.
    with context.db.read() as session:
        snapshot = _with_workers(context, session, snapshot, purpose, asking)
    return step if snapshot.can_run(purpose) else _plan(context, snapshot, asking)


def _with_workers(
    context: Context, session: Session, snapshot: StudySnapshot, purpose: RunPurpose, asking: WorkRequest
) -> StudySnapshot:
    """Copy of a study's snapshot that says whether runs of a purpose which older workers do not know can take place."""
    study = studies.get(session, snapshot.study_id)
    assert study is not None
    if purpose in OPTIONAL_PURPOSES:
        return with_obstacle(context, session, study, snapshot, purpose, asking)
    return replace(snapshot, has_resume_worker=has_worker_for(context, session, study, purpose))


def _lock_study(context: Context, session: Session, open_study: OpenStudy) -> StudyRow | None:
    """Lock a study until the transaction ends; None if the study may get no run."""
    if open_study.is_background:
        # The budget's row is locked before the study's: see note [lock order].
        retune_budget.lock_ledger(session)
    study = studies.lock(session, open_study.study.id)
    # Checked again under the lock: another replica may have spent the rest of the day's budget since the study was
    # listed.
    if open_study.is_background and not retune_budget.admits_run(context, session, study):
        return None
    # An ended study is allowed: its waiting run can only be a trace, which is recorded after the end.
    return study if study.state is StudyState.RUNNING or not study.state.is_open else None
