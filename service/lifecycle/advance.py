"""Apply the steps `service.planning.study_plan` planned, each in a transaction that holds the study and checks its version.

A new trial costs the most to plan, and may be made though runs have ended since (`still_holds`).
"""

import logging
from dataclasses import replace
from functools import partial
from typing import assert_never

from sqlalchemy.orm import Session

from shardtune.api_schemas.studies.study import StudyPhase, StudyPurpose, StudyState
from shardtune.api_schemas.studies.system_studies import SystemStudyKind
from shardtune.api_schemas.trials.trial import RunPurpose, TrialState
from shardtune.db.queries import leases, studies, trials
from shardtune.db.tables.studies import RunRow, StudyRow
from shardtune.service.lifecycle import traces, transitions
from shardtune.service.lifecycle.locked_run import HeldRun
from shardtune.service.planning import study_plan, study_snapshot, system_study_plan
from shardtune.service.planning.study_plan import (
    Complete,
    Confirm,
    Fail,
    NewConfirmation,
    NewResumeRun,
    NewTrial,
    Step,
    Wait,
)
from shardtune.service.planning.study_snapshot import StudySnapshot
from shardtune.service.process.background import count_done
from shardtune.service.process.context import Context
from shardtune.service.recommendations import record
from shardtune.tuner.history import Observation
from shardtune.tuner.prediction.calibration import NOTHING_LEARNT
from shardtune.tuner.search import stopping
from shardtune.tuner.verdict.resume_check import ResumeRun

log = logging.getLogger(__name__)

_MOST_STEPS = 8
"""Without a worker a study takes at most two steps in a row; more means that other processes race us."""


def advance(context: Context, study_id: str, known: StudySnapshot | None = None) -> bool:
    """Take every step that needs no worker: end the search, choose whom to promote, store the result; whether any was.

    `known`: the study as it was just now, where the caller has it.
    """
    took, seen = False, known
    for _ in range(_MOST_STEPS):
        seen = seen or _look_at(context, study_id)
        step = plan(context, seen, may_ask=False)
        if isinstance(step, Wait | NewTrial | NewConfirmation | NewResumeRun):
            break
        with context.db.write() as session:
            study = studies.lock(session, study_id)
            if study.version == seen.version and study.state is StudyState.RUNNING:
                apply(context, session, study, step, seen)
                took = True
        seen = None
    return took


def begin_next(context: Context, session: Session, held: HeldRun, seen: StudySnapshot) -> tuple[StudySnapshot, bool]:
    """Make the run that a user's final comparison needs next right with the end of the one before, and say whether it is of the same
    block: its worker takes it with one look, where it would plan it in transactions of its own. `seen`: after that end.

    The caller holds the study.
    """
    study = held.study
    if study.purpose != StudyPurpose.USER or study.phase is not StudyPhase.FINAL_COMPARISON:
        return seen, False
    step = plan(context, seen, may_ask=False)
    if not isinstance(step, NewConfirmation):
        return seen, False
    trial = next(row for row in held.trials if row.number == step.trial_number)
    run = leases.add_run(session, study, trial, RunPurpose.VALIDATION, context.now(), step.block, step.undecided_s)
    study.version += 1
    return following(seen, step, study.version, run.state), run.block == held.run.block


def following(seen: StudySnapshot, planned: Step, version: int, state: TrialState) -> StudySnapshot:
    """What was seen, with the run that was made since, by this step."""
    seen = replace(
        seen,
        version=version,
        has_waiting_run=state is TrialState.WAITING,
        has_open_run=True,
        has_resume_worker=True,
        calibrations=NOTHING_LEARNT,
        hardware=None,
    )
    match planned:
        case NewTrial():
            made = Observation(len(seen.history), planned.config, planned.origin, state)
            known = {rejection.config.content_key() for rejection in seen.rejected}
            rejected = (one for one in planned.rejections if one.config.content_key() not in known)
            return replace(seen, history=(*seen.history, made), rejected=(*seen.rejected, *rejected))
        case NewConfirmation():
            runs, gpu_seconds = seen.final_comparison_cost
            return replace(seen, final_comparison_cost=(runs + 1, gpu_seconds))
        case NewResumeRun():
            return replace(seen, restarts=(*seen.restarts, ResumeRun(planned.trial_number, state, None, None)))
        case _:
            raise AssertionError(f"{type(planned).__name__} makes no run")


def _look_at(context: Context, study_id: str) -> StudySnapshot:
    with context.db.read() as session:
        study = studies.get(session, study_id)
        assert study is not None
        return look(context, session, study)


def look(context: Context, session: Session, study: StudyRow) -> StudySnapshot:
    """The study as the transaction sees it; its history is read only where it has changed since it was last."""
    known = context.planner_cache.snapshot(study.id, study.version)
    if known is not None:
        opened = leases.open_states(session, [study.id]).get(study.id, set())
        return study_snapshot.with_open_runs(known, opened)
    seen = study_snapshot.view(session, study)
    context.planner_cache.keep_snapshot(seen)
    return seen


def catch_up(context: Context) -> None:
    """Take the steps that a killed service owes: a report is stored first, and what follows from it after that.

    The next question for work would take them, too, but there may be no worker left to ask.
    """
    with context.db.read() as session:
        running = studies.running_versions(session)
    count_done(running, partial(advance, context), str)


def plan(context: Context, seen: StudySnapshot, may_ask: bool) -> Step:
    """The study's next step; a planner that breaks fails its study.

    Planning is pure, so it would break again at every request, and no study behind this one would get a worker.
    """
    try:
        if seen.system_study is not None and seen.system_study.kind != SystemStudyKind.SEARCH:
            return system_study_plan.plan(seen, seen.system_study, may_ask)
        return study_plan.plan(seen, context.planner_cache, context.now(), may_ask)
    except Exception as error:  # a border: it ends this study, where the loop would meet it for ever
        log.exception("planning failed", extra={"study": seen.study_id})
        return Fail(f"the search broke with {type(error).__name__}: {error}; the service's log has the traceback")


def still_holds(context: Context, session: Session, study: StudyRow, step: Step, seen: StudySnapshot) -> bool:
    """Whether a new trial may be made though the study has changed since it was planned: runs have ended meanwhile, of
    which the sampler was not told, as of those that end right after. The caller holds the study, and nobody else asks there.
    """
    if not isinstance(step, NewTrial) or study.phase is not seen.phase or study.spec != seen.spec:
        return False
    if trials.count(session, study.id) != len(seen.history):
        return False
    elapsed_s = (context.now() - seen.started_at).total_seconds()
    return stopping.end_of_search(seen.history, study.spec.budget, study.gpu_seconds, elapsed_s) is None


def apply(context: Context, session: Session, study: StudyRow, step: Step, seen: StudySnapshot) -> RunRow | None:
    """Do one step; the run it makes, if any. The caller holds the study, at the version the step was planned for or at one
    where it `still_holds`."""
    now, extra = context.now(), {"study": study.id}
    run: RunRow | None = None
    if not isinstance(step, NewConfirmation | NewResumeRun) and step.rejections:
        trials.reject(session, study.id, step.rejections, now)
        study.version += 1
    match step:
        case Wait():
            return None
        case NewTrial():
            number = len(seen.history)
            trial = trials.add(session, study.id, number, step.config, step.origin, now, step.prediction, step.reason)
            run = leases.add_run(session, study, trial, RunPurpose.SEARCH, now, undecided_s=step.undecided_s)
        case NewConfirmation():
            again = trials.by_number(session, study.id, step.trial_number)
            assert again is not None
            run = leases.add_run(session, study, again, RunPurpose.VALIDATION, now, step.block, step.undecided_s)
        case NewResumeRun():
            winner = trials.by_number(session, study.id, step.trial_number)
            assert winner is not None
            run = leases.add_run(session, study, winner, RunPurpose.RESUME_CHECK, now)
        case Confirm():
            study.final_comparison = step.final_comparison
            study.comparison_round += 1
            study.phase = StudyPhase.FINAL_COMPARISON
            study.reason = step.reason or study.reason
            log.info("search ended, promoting: %s", step.final_comparison, extra=extra)
        case Complete():
            study.result = step.result
            transitions.end_study(session, study, StudyState.COMPLETE, step.reason, now)
            record.propose(context, session, study, now)
            traces.ask_after_verdict(session, study, now)
            log.info("study complete: %s", step.result.verdict.value, extra=extra)
        case Fail():
            # Of a study that was extended: what it found since contradicts it.
            study.result = None
            transitions.end_study(session, study, StudyState.FAILED, step.reason, now)
            log.warning("study failed: %s", step.reason, extra=extra)
        case _:
            assert_never(step)
    study.version += 1
    return run
