"""Update a run, its trial and its study after an attempt at the run has ended."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from sqlalchemy.orm import Session

from shardtune.api_schemas.studies.reasons import StudyReason, StudyReasonCode
from shardtune.api_schemas.studies.study_state import StudyPhase, StudyState
from shardtune.api_schemas.training.models import ModelSummary
from shardtune.api_schemas.trials.diagnosis import Diagnosis
from shardtune.api_schemas.trials.failures import Failure, FailureKind
from shardtune.api_schemas.trials.measurements import Measurement
from shardtune.api_schemas.trials.rehearsals import RehearsalReport
from shardtune.api_schemas.trials.resume_check import ResumeMeasurement
from shardtune.api_schemas.trials.trial import AttemptEnd, RunPurpose, TrialState
from shardtune.db.tables.studies import StudyRow
from shardtune.db.tables.trials import AttemptRow, RunRow, TrialRow
from shardtune.service.lifecycle import baseline_loss, disturbances, script_backends, transitions
from shardtune.service.lifecycle.locked_run import LockedRun
from shardtune.service.planning import study_plan, study_snapshot
from shardtune.tuner import objective
from shardtune.tuner.prediction import memory_gate
from shardtune.tuner.verdict import disturbance, ranking
from shardtune.tuner.verdict.budget_left import StudySpent
from shardtune.tuner.verdict.winner import resume_check

log = logging.getLogger(__name__)

_MAX_EQUAL_ENDS = 2
"""Number of attempts that may end in the same way; after that, the run is not repeated. Two attempts mean that a
fault of the platform is retried once.
"""
# The study, or a measured trial, depends on these runs, so they get one try more. A lost node never counts by itself:
# only the total number of tries ends the run.
_MAX_EQUAL_ENDS_LENIENT = 3
"""Number of times that a run may fail in the same way before it is not repeated. It applies to validation runs, and
to runs that count the sizes and FLOPs of a study's model.
"""
# A run that never ends the same way twice would otherwise be retried forever.
_MAX_TRIES = 4
"""Maximum number of attempts at one run, whatever ended them."""
_GIVEN_BACK = (AttemptEnd.RELEASED, AttemptEnd.PREEMPTED)
"""Ends of attempts whose run was given back without a fault of the configuration or the platform."""
_MAX_RELEASES = 50
"""Maximum number of times that one run may be given back without having been executed. Restarts and preemptions of honest
workers come minutes apart; a worker that returned every run at once caused 150 attempts in 19 s.
"""


@dataclass(frozen=True)
class JudgedEnd:
    """Way in which an attempt at a run ended, with exactly one result: a measurement, model summary, resume check
    (train, save, resume), rehearsal (untimed first steps), diagnosis or failure.
    """

    gpu_seconds: float
    measurement: Measurement | None = None
    model_summary: ModelSummary | None = None
    resume_check: ResumeMeasurement | None = None
    rehearsal: RehearsalReport | None = None
    diagnosis: Diagnosis | None = None
    failure: Failure | None = None
    is_release: bool = False
    is_preemption: bool = False
    log_tail: str | None = None
    report_key: str | None = None

    @property
    def end(self) -> AttemptEnd:
        """Value of the column that stores how an attempt ended."""
        if self.is_preemption:
            return AttemptEnd.PREEMPTED
        if self.is_release:
            return AttemptEnd.RELEASED
        return AttemptEnd(self.failure.kind) if self.failure else AttemptEnd.COMPLETE


def next_state(
    purpose: RunPurpose, ended: JudgedEnd, earlier: Sequence[AttemptEnd], might_fit: bool = False
) -> TrialState:
    """State of a run after an attempt has ended; `earlier` contains the ends of the run's previous attempts.

    With `might_fit`, the run went out of memory near the limit. It is then tried once more before it counts as
    infeasible.
    """
    failure = ended.failure
    if failure is None:
        # A disturbed run is never certainly slower.
        is_certain = ended.measurement is not None and ended.measurement.is_pruned and not ended.measurement.disturbed
        return TrialState.PRUNED if is_certain and purpose == RunPurpose.SEARCH else TrialState.COMPLETE
    if failure.kind is FailureKind.DISTURBED:
        # The service judges a run disturbed only if it may be repeated; this bounds a worker that reports it forever.
        return TrialState.WAITING if earlier.count(ended.end) < disturbance.MAX_REPEATS else TrialState.FAILED
    if failure.is_infeasible:
        # Near the limit one failure does not prove that the configuration does not fit (memory_gate.near_the_edge).
        is_first = ended.end not in earlier
        return TrialState.WAITING if might_fit and is_first else TrialState.INFEASIBLE
    if ended.end in _GIVEN_BACK:
        # A release is nobody's fault: the run waits again. But a worker could take and return it for ever.
        releases = sum(end in _GIVEN_BACK for end in earlier)
        return TrialState.WAITING if releases + 1 < _MAX_RELEASES else TrialState.FAILED
    if purpose == RunPurpose.MODEL_SUMMARY and failure.kind is FailureKind.CRASH:
        # Building on the meta device is deterministic: a second attempt would crash alike.
        return TrialState.FAILED
    is_lenient = purpose != RunPurpose.SEARCH and failure.kind is FailureKind.WORKER_LOST
    max_equal_ends = (
        _MAX_TRIES
        if failure.kind is FailureKind.NODE_LOST
        else _MAX_EQUAL_ENDS_LENIENT
        if is_lenient
        else _MAX_EQUAL_ENDS
    )
    # Releases and disturbances say nothing about the configuration or the platform, so they use up no try.
    tries = [end for end in earlier if end not in (*_GIVEN_BACK, AttemptEnd.DISTURBED)]
    is_final = sum(end == ended.end for end in tries) + 1 >= max_equal_ends or len(tries) + 1 >= _MAX_TRIES
    return TrialState.FAILED if is_final else TrialState.WAITING


def apply_end(session: Session, locked_run: LockedRun, reported_end: JudgedEnd, now: datetime) -> None:
    """End the current attempt at a run, and update the run, its trial and its study.

    A measurement becomes a failure if it exceeds the memory limit, or if its losses diverge from the reference
    losses.
    """
    study, run, attempt = locked_run.study, locked_run.run, locked_run.attempt(locked_run.run.attempt)
    assert run.state is TrialState.RUNNING and attempt is not None and attempt.end is None, "no live attempt"
    if run.purpose not in (RunPurpose.MODEL_SUMMARY, RunPurpose.TRACE):
        # Read before anything changes: a query would make SQLAlchemy flush the pending changes, and the rest again
        # later.
        assert locked_run.trials
    failure = reported_end.failure or _find_failure(session, locked_run, reported_end)
    if failure is None and reported_end.measurement is not None:
        elapsed_s = (now - (study.started_at or study.created_at)).total_seconds()
        spent = StudySpent(study.gpu_seconds + reported_end.gpu_seconds, elapsed_s)
        judged_measurement = disturbances.judge(session, locked_run, reported_end.measurement, spent)
        if isinstance(judged_measurement, Failure):
            failure = judged_measurement
        else:
            reported_end = replace(reported_end, measurement=judged_measurement)
    judged_end = replace(reported_end, measurement=None if failure else reported_end.measurement, failure=failure)
    state = next_state(run.purpose, judged_end, locked_run.ends, _is_near_memory_limit(study, run, failure))
    _close_run(run, state, reported_end, failure, now)
    _close_attempt(locked_run, attempt, reported_end, judged_end, now)
    _apply_to_trial_and_study(session, locked_run, judged_end, now)


def _close_run(run: RunRow, state: TrialState, reported_end: JudgedEnd, failure: Failure | None, now: datetime) -> None:
    """Set the columns of a run that describe its end. A run that will be repeated keeps only the text output of the
    attempt.
    """
    transitions.run(run, state, now)
    # A retried run must not show the failed attempt's values while it waits.
    is_over = state is not TrialState.WAITING
    run.lease_until, run.log_tail = None, reported_end.log_tail
    run.measurement = reported_end.measurement if is_over else None
    run.resume_check = reported_end.resume_check if is_over else None
    run.rehearsal = reported_end.rehearsal if is_over else None
    run.diagnosis = reported_end.diagnosis if is_over else None
    run.failure = failure if is_over else None


def _find_failure(session: Session, locked_run: LockedRun, reported_end: JudgedEnd) -> Failure | None:
    study, run = locked_run.study, locked_run.run
    if reported_end.resume_check is not None:
        workload = study.spec.workload
        stated = workload.precision, workload.optimizer, workload.float8
        return resume_check.resume_failure(reported_end.resume_check, *stated)
    if reported_end.measurement is None:
        return None
    if reported_end.measurement.suspect is not None:
        message = f"the numbers cannot be true: {reported_end.measurement.suspect}"[:4000]
        return Failure(kind=FailureKind.SUSPECT, message=message, conditions=reported_end.measurement.conditions)
    limit_failure = objective.over_limit_failure(reported_end.measurement, study.cluster, study.spec.objective)
    if limit_failure is not None or run.purpose != RunPurpose.VALIDATION or run.trial is None:
        return limit_failure
    history = [study_snapshot.observation(row, study.comparison_round) for row in locked_run.trials]
    rejected = locked_run.rejected
    return study_plan.validation_failure(history, rejected, study.spec, run.trial.number, reported_end.measurement)


def _is_near_memory_limit(study: StudyRow, run: RunRow, failure: Failure | None) -> bool:
    """Whether a run went out of memory so close to the limit that it gets a second try."""
    # Validation runs need no second try here: their trial has been measured before.
    if failure is None or run.trial is None or run.purpose != RunPurpose.SEARCH:
        return False
    return memory_gate.near_the_edge(failure, run.trial.prediction, study.cluster, study.spec.objective)


def _close_attempt(
    locked_run: LockedRun, attempt: AttemptRow, reported_end: JudgedEnd, judged_end: JudgedEnd, now: datetime
) -> None:
    study, run = locked_run.study, locked_run.run
    attempt.end, attempt.failure, attempt.finished_at = judged_end.end, judged_end.failure, now
    attempt.gpu_seconds, attempt.report_key = reported_end.gpu_seconds, reported_end.report_key
    study.gpu_seconds += reported_end.gpu_seconds
    study.version += 1
    extra = {"study": study.id, "run": run.id, "attempt": run.attempt, "end": judged_end.end, "state": run.state.value}
    log.info("attempt ended", extra=extra | {"trial": run.trial.number if run.trial else None})


def _apply_to_trial_and_study(session: Session, locked_run: LockedRun, judged_end: JudgedEnd, now: datetime) -> None:
    """Update a run's trial and study after the run's state has changed."""
    study, run = locked_run.study, locked_run.run
    if run.purpose in (RunPurpose.TRACE, RunPurpose.SUSTAINED, RunPurpose.RECIPE, RunPurpose.REHEARSAL):
        return  # The study has its answer; none of these runs, nor its failure, changes it.
    if run.purpose == RunPurpose.MODEL_SUMMARY:
        _apply_model_summary(session, study, run, judged_end, now)
        return
    assert run.trial is not None
    if run.purpose == RunPurpose.SEARCH:
        transitions.trial(run.trial, run.state, now, None if run.state is TrialState.WAITING else judged_end.failure)
    elif run.state in (TrialState.INFEASIBLE, TrialState.FAILED) and not _leaves_trial_unchanged(
        study, run, judged_end
    ):
        # A trial that cannot be repeated cannot be recommended, whoever's fault it is.
        assert judged_end.failure is not None
        if run.trial.state is TrialState.COMPLETE:
            transitions.trial(run.trial, TrialState.INFEASIBLE, now, judged_end.failure)
        study.final_comparison = None
    _judge_trajectories(session, study, locked_run.trials, now)


def _leaves_trial_unchanged(study: StudyRow, run: RunRow, judged_end: JudgedEnd) -> bool:
    """Whether a failed resume check leaves its trial and the final comparison (paired runs that decide) as they are:
    because the platform failed, or because the trial is the baseline, which has won.
    """
    # The baseline is what its user runs today; a failed check is reported and takes nothing away.
    if run.purpose != RunPurpose.RESUME_CHECK:
        return False
    assert run.trial is not None and judged_end.failure is not None
    is_baseline = study.final_comparison is not None and run.trial.number == study.final_comparison.baseline
    return is_baseline or not resume_check.is_rejection(judged_end.failure)


def _apply_model_summary(session: Session, study: StudyRow, run: RunRow, judged_end: JudgedEnd, now: datetime) -> None:
    if run.state is TrialState.COMPLETE:
        study.model_summary = judged_end.model_summary
        assert judged_end.model_summary is not None
        if judged_end.model_summary.note is not None:
            study.notes = (*study.notes, judged_end.model_summary.note)
        if judged_end.model_summary.attention is not None:
            study.notes = (
                *study.notes,
                f"attention: {judged_end.model_summary.attention}, since the architecture has no fused one",
            )
        baseline_loss.measure_whole(study, judged_end.model_summary)
        rejection = script_backends.restrict_backends(study, judged_end.model_summary)
        if rejection is not None:
            rejected = StudyReason(code=StudyReasonCode.MODEL_REJECTED, text=rejection)
            transitions.end_study(session, study, StudyState.FAILED, rejected, now)
            return
        study.phase = StudyPhase.SEARCH
    elif run.state is not TrialState.WAITING:
        assert judged_end.failure is not None
        text = f"the model could not be summarized ({judged_end.failure.kind.value}): {judged_end.failure.message}"
        reason = StudyReason(code=StudyReasonCode.MODEL_NOT_SUMMARIZED, text=text)
        transitions.end_study(session, study, StudyState.FAILED, reason, now)


def _judge_trajectories(session: Session, study: StudyRow, trials: Sequence[TrialRow], now: datetime) -> None:
    """Compare the loss trajectories of all trials again, and mark complete trials that diverge from the reference as
    infeasible.
    """
    # All again, not only the new one: its measurement may change which trajectory is the reference.
    rows = {row.number: row for row in trials}
    history = [study_snapshot.observation(row, study.comparison_round) for row in rows.values()]
    parity_groups = study_plan.parity_groups_so_far(history, study.spec)
    diverged = {
        number_: reason_
        for number_, reason_ in parity_groups.infeasible.items()
        if rows[number_].state is TrialState.COMPLETE
    }
    if diverged:
        # A trial may have become complete in this transaction; the flush writes that event before the next one.
        session.flush()
    for number, reason in diverged.items():
        failure = Failure(kind=FailureKind.NUMERICS, message=reason)
        transitions.trial(rows[number], TrialState.INFEASIBLE, now, failure)
        log.warning("trial trains something else: %s", reason, extra={"study": study.id, "trial": number})
        if study.final_comparison is not None and number in study.final_comparison.members:
            study.final_comparison = None
    study.best_so_far = ranking.best_so_far(history, parity_groups)
