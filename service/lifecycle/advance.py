"""Apply the steps that `service.planning.study_plan` planned, each in a transaction that locks the study and checks its
version.
"""

import logging
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import assert_never

from sqlalchemy.orm import Session

from shardtune.api_schemas.studies.reasons import StudyReason, StudyReasonCode
from shardtune.api_schemas.studies.study_result import StudyResult
from shardtune.api_schemas.studies.study_state import StudyPhase, StudyPurpose, StudyState
from shardtune.api_schemas.studies.system_studies import SystemStudyKind
from shardtune.api_schemas.trials.trial import OPTIONAL_PURPOSES, RunPurpose, TrialState
from shardtune.db.queries import leases, studies, trials
from shardtune.db.queries.recommendations import study_recommendations
from shardtune.db.tables.studies import StudyRow
from shardtune.db.tables.trials import RunRow, TrialRow
from shardtune.service.access import quotas
from shardtune.service.lifecycle import traces, transitions
from shardtune.service.lifecycle.locked_run import LockedRun
from shardtune.service.lifecycle.target_projection import with_projection
from shardtune.service.planning import study_plan, study_snapshot, system_study_plan
from shardtune.service.planning.study_snapshot import StudySnapshot
from shardtune.service.planning.study_steps import (
    Complete,
    Fail,
    NewRecipeRun,
    NewRehearsalRun,
    NewResumeRun,
    NewRun,
    NewSustainedRun,
    NewTrial,
    NewValidationRun,
    StartFinalComparison,
    Step,
    Wait,
)
from shardtune.service.process.background import sum_unlocked
from shardtune.service.process.context import Context
from shardtune.service.recommendations import record, withdrawal
from shardtune.service.recommendations.target_report import keep_confirmation
from shardtune.tuner.history import Observation
from shardtune.tuner.prediction.calibration import NO_CALIBRATIONS
from shardtune.tuner.projection.target_rehearsals import RehearsalRun
from shardtune.tuner.search import stopping
from shardtune.tuner.verdict import kept_answer
from shardtune.tuner.verdict.recipes.comparison import RecipeObservation
from shardtune.tuner.verdict.winner.resume_check import ResumeRun
from shardtune.tuner.verdict.winner.sustained_run import SustainedObstacle, SustainedRun

log = logging.getLogger(__name__)

# More than two means that other processes race this one; the next request or sweep goes on.
_MAX_STEPS = 8
"""Maximum number of steps that a study takes directly after each other. As long as no worker is involved, at most two
are ever needed.
"""

_SAYS_NOTHING_OF_TRIALS = (StudyReasonCode.INTERNAL_ERROR, StudyReasonCode.EMPTY_SPACE)
"""Reasons of failures that do not contradict an earlier result of the study: no trial led to them."""


def advance(context: Context, study_id: str, current: StudySnapshot | None = None) -> bool:
    """Take all steps of a study that are due and need no worker, such as to end the search, choose the finalists or
    store the result.

    Returns whether any step was taken. `current`: the study's present snapshot, if the caller has it.
    """
    has_advanced, snapshot = False, current
    for _ in range(_MAX_STEPS):
        snapshot = snapshot or _read(context, study_id)
        # Planned outside the transaction: nothing below may hold the study's row while the tuner computes.
        step = with_projection(context, snapshot, plan_step(context, snapshot, may_ask=False))
        if _waits_for_quota(context, snapshot, step):
            # The answer is known. It would come only the next day, for an optional run.
            snapshot = replace(snapshot, sustained_obstacle=SustainedObstacle.QUOTA_USED_UP)
            step = with_projection(context, snapshot, plan_step(context, snapshot, may_ask=False))
        if isinstance(step, Wait | NewRun):
            break
        with context.db.write() as session:
            study = studies.lock(session, study_id)
            # The version check makes the step safe: another process may have taken it since the snapshot was read.
            if study.version == snapshot.version and study.state is StudyState.RUNNING:
                apply_step(context, session, study, step, snapshot)
                has_advanced = True
        snapshot = None
    return has_advanced


def _waits_for_quota(context: Context, snapshot: StudySnapshot, step: Step) -> bool:
    """Whether a study waits for optional runs alone, and its project has used up its GPU-seconds of the day."""
    is_planned = isinstance(step, NewSustainedRun | NewRecipeRun | NewRehearsalRun)
    if not is_planned and snapshot.waiting_purposes.isdisjoint(OPTIONAL_PURPOSES):
        return False
    with context.db.read() as session:
        study = studies.get(session, snapshot.study_id)
        assert study is not None
        return quotas.is_exhausted(session, study.project_id, study.project.quotas, context.now())


def begin_next(
    context: Context, session: Session, locked_run: LockedRun, snapshot: StudySnapshot
) -> tuple[StudySnapshot, bool]:
    """Add the next run of a user's final comparison (paired runs that decide) in the same transaction that ended the
    previous run.

    Returns the study's snapshot with the new run, and whether the new run belongs to the same comparison block (runs
    executed directly after each other) as the previous one. `snapshot` is the study after the end of the previous
    run. The caller has locked the study.
    """
    # One transaction saves the worker a round of planning between two runs of a block: it takes the new run with one
    # query. Other studies go through `advance`.
    study = locked_run.study
    if study.purpose != StudyPurpose.USER or study.phase is not StudyPhase.FINAL_COMPARISON:
        return snapshot, False
    step = plan_step(context, snapshot, may_ask=False)
    if not isinstance(step, NewValidationRun):
        return snapshot, False
    trial = next(row for row in locked_run.trials if row.number == step.trial_number)
    run = leases.add_run(
        session, study, trial, RunPurpose.VALIDATION, context.now(), step.comparison_block, step.undecided_s
    )
    study.version += 1
    return snapshot_after(
        snapshot, step, study.version, run.state
    ), run.comparison_block == locked_run.run.comparison_block


def snapshot_after(snapshot: StudySnapshot, step: Step, version: int, state: TrialState) -> StudySnapshot:
    """Return the state of a study after a step has added a run, computed without reading the study again."""
    # Derived, not read: reading a study's whole history for each new run would cost the more the longer the study runs.
    snapshot = replace(
        snapshot,
        version=version,
        has_waiting_run=state is TrialState.WAITING,
        has_open_run=True,
        has_resume_worker=True,
        sustained_obstacle=None,
        has_recipe_worker=True,
        has_rehearsal_worker=True,
        calibrations=NO_CALIBRATIONS,
        hardware=None,
    )
    match step:
        case NewTrial():
            new_trial = Observation(len(snapshot.history), step.config, step.origin, state)
            known_keys = {rejection.config.content_key() for rejection in snapshot.rejected}
            rejected = (item for item in step.rejections if item.config.content_key() not in known_keys)
            return replace(snapshot, history=(*snapshot.history, new_trial), rejected=(*snapshot.rejected, *rejected))
        case NewValidationRun():
            runs, gpu_seconds = snapshot.final_comparison_cost
            return replace(snapshot, final_comparison_cost=(runs + 1, gpu_seconds))
        case NewResumeRun():
            return replace(
                snapshot, resume_runs=(*snapshot.resume_runs, ResumeRun(step.trial_number, state, None, None))
            )
        case NewSustainedRun():
            sustained_run = SustainedRun(step.trial_number, state)
            return replace(snapshot, sustained_runs=(*snapshot.sustained_runs, sustained_run))
        case NewRecipeRun():
            new_run = RecipeObservation(step.trial_number, step.recipe, step.comparison_block, state)
            return replace(snapshot, recipe_runs=(*snapshot.recipe_runs, new_run))
        case NewRehearsalRun():
            rehearsal = RehearsalRun(step.trial_number, step.config, state)
            return replace(snapshot, rehearsal_runs=(*snapshot.rehearsal_runs, rehearsal))
        case _:
            raise AssertionError(f"{type(step).__name__} makes no run")


def _read(context: Context, study_id: str) -> StudySnapshot:
    with context.db.read() as session:
        study = studies.get(session, study_id)
        assert study is not None
        return read_snapshot(context, session, study)


def read_snapshot(context: Context, session: Session, study: StudyRow) -> StudySnapshot:
    """Return a study's snapshot, read in this transaction. The study's history is read only if its version has
    changed since the cached snapshot.
    """
    cached = context.planner_cache.snapshot(study.id, study.version)
    if cached is not None:
        open_states = leases.open_states(session, [study.id]).get(study.id, set())
        return study_snapshot.with_open_runs(cached, open_states)
    snapshot = study_snapshot.read_study(session, study)
    context.planner_cache.keep_snapshot(snapshot)
    return snapshot


def catch_up(context: Context) -> None:
    """Take the steps of studies that are still due because the service was killed between two transactions. A
    worker's report is stored in the first one, and its consequences follow in later ones.
    """
    with context.db.read() as session:
        running = studies.running_versions(session)
    sum_unlocked(running, partial(advance, context), str)


def plan_step(context: Context, snapshot: StudySnapshot, may_ask: bool) -> Step:
    """Plan a study's next step. If the planner raises an exception, the step is to fail the study."""
    # Planning is pure, so it would raise again at every request, and no study behind this one would get a worker.
    try:
        if snapshot.system_study is not None and snapshot.system_study.kind != SystemStudyKind.SEARCH:
            return system_study_plan.plan(snapshot, snapshot.system_study, may_ask)
        return study_plan.plan_next_step(snapshot, context.planner_cache, context.now(), may_ask)
    except Exception as error:  # a border: without it every request for work would meet the same exception.
        log.exception("planning failed", extra={"study": snapshot.study_id})
        text = f"the search failed with {type(error).__name__}: {error}; the service's log has the traceback"
        return Fail(StudyReason(code=StudyReasonCode.INTERNAL_ERROR, text=text))


def still_holds(context: Context, session: Session, study: StudyRow, step: Step, snapshot: StudySnapshot) -> bool:
    """Whether a planned trial may still be added to a study although the study's version has changed since the
    planning.

    The caller has locked the study and holds its ask lock, with which only one process plans the study at a time.
    """
    # Sampling takes longest, so runs often end meanwhile. Their results reach the sampler one trial later, as those of
    # runs that end right after do; throwing the plan away would only cost time.
    if not isinstance(step, NewTrial) or study.phase is not snapshot.phase or study.spec != snapshot.spec:
        return False
    if trials.count(session, study.id) != len(snapshot.history):
        return False
    elapsed_s = (context.now() - snapshot.started_at).total_seconds()
    return stopping.stop_reason(snapshot.history, study.spec.budget, study.gpu_seconds, elapsed_s) is None


def _trial(session: Session, study: StudyRow, number: int) -> TrialRow:
    row = trials.by_number(session, study.id, number)
    assert row is not None
    return row


def _new_result(session: Session, snapshot: StudySnapshot, newest: StudyResult) -> StudyResult:
    """Result of a study whose final comparison has ended with `newest`. A confirmed result of an earlier comparison
    stays where this one decided nothing against it.
    """
    earlier = snapshot.earlier_result
    if earlier is None:
        return newest
    answer = snapshot.answer(newest)
    if answer is not newest:
        return keep_confirmation(earlier, kept_answer.kept(answer, newest))
    recorded = study_recommendations.newest_of_study(session, snapshot.study_id)
    decided_at = None if recorded is None else recorded.created_at
    return keep_confirmation(earlier, kept_answer.with_replaced(newest, earlier, decided_at))


def _fail_study(session: Session, study: StudyRow, step: Fail, now: datetime) -> None:
    # An extended study has an earlier result. Where its new trials contradict that result, it must not stand beside the
    # failure; an error of the planner says nothing against it.
    if step.reason.code not in _SAYS_NOTHING_OF_TRIALS and study.result is not None:
        study.result = None
        withdrawal.withdraw_contradicted(session, study, f"its study was extended and failed: {step.reason.text}", now)
    transitions.end_study(session, study, StudyState.FAILED, step.reason, now)
    log.warning("study failed: %s", step.reason.sentence, extra={"study": study.id})


def apply_step(
    context: Context, session: Session, study: StudyRow, step: Step, snapshot: StudySnapshot
) -> RunRow | None:
    """Apply one planned step to a study; returns the run that the step adds, if any.

    The caller has locked the study. The step must have been planned for the study's present version, unless
    `still_holds` says that it still applies.
    """
    now, extra = context.now(), {"study": study.id}
    run: RunRow | None = None
    # Rejections are stored with the step: a resumed plan must not predict the memory of the same configurations again.
    if isinstance(step, Wait | NewTrial | StartFinalComparison | Complete | Fail) and step.rejections:
        trials.reject(session, study.id, step.rejections, now)
        study.version += 1
    match step:
        case Wait():
            return None
        case NewTrial():
            number = len(snapshot.history)
            trial = trials.add(session, study.id, number, step.config, step.origin, now, step.prediction, step.reason)
            run = leases.add_run(session, study, trial, RunPurpose.SEARCH, now, undecided_s=step.undecided_s)
        case NewValidationRun():
            trial_row = _trial(session, study, step.trial_number)
            run = leases.add_run(
                session, study, trial_row, RunPurpose.VALIDATION, now, step.comparison_block, step.undecided_s
            )
        case NewResumeRun():
            winner = _trial(session, study, step.trial_number)
            run = leases.add_run(session, study, winner, RunPurpose.RESUME_CHECK, now)
        case NewSustainedRun():
            winner = _trial(session, study, step.trial_number)
            run = leases.add_run(session, study, winner, RunPurpose.SUSTAINED, now)
        case NewRecipeRun():
            answer = _trial(session, study, step.trial_number)
            run = leases.add_run(
                session, study, answer, RunPurpose.RECIPE, now, step.comparison_block, recipe=step.recipe
            )
        case NewRehearsalRun():
            projected = _trial(session, study, step.trial_number)
            run = leases.add_run(session, study, projected, RunPurpose.REHEARSAL, now, rehearsed_config=step.config)
        case StartFinalComparison():
            study.final_comparison = step.final_comparison
            study.comparison_round += 1
            study.phase = StudyPhase.FINAL_COMPARISON
            if step.reason is not None:
                study.explain(step.reason)
            log.info("search ended, comparing finalists: %s", step.final_comparison, extra=extra)
        case Complete():
            study.result = _new_result(session, snapshot, step.result)
            transitions.end_study(session, study, StudyState.COMPLETE, step.reason, now)
            record.record_result(context, session, study, now)
            if snapshot.sustained_obstacle is not SustainedObstacle.CANCELLED:
                traces.request_traces_after_verdict(session, study, now)
            log.info("study complete: %s", step.result.verdict.value, extra=extra)
        case Fail():
            _fail_study(session, study, step, now)
        case _:
            assert_never(step)
    study.version += 1
    return run
