"""What the end of an attempt means for its run, its trial and its study."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from sqlalchemy.orm import Session

from shardtune.api_schemas.studies.study import StudyPhase, StudyState
from shardtune.api_schemas.training.models import ModelSummary
from shardtune.api_schemas.trials.diagnosis import Diagnosis
from shardtune.api_schemas.trials.failures import Failure, FailureKind
from shardtune.api_schemas.trials.measurements import Measurement
from shardtune.api_schemas.trials.resume_check import ResumeMeasurement
from shardtune.api_schemas.trials.trial import AttemptEnd, RunPurpose, TrialState
from shardtune.db.tables.studies import AttemptRow, RunRow, StudyRow, TrialRow
from shardtune.service.lifecycle import disturbances, script_backends, transitions
from shardtune.service.lifecycle.locked_run import HeldRun
from shardtune.service.planning import study_plan, study_snapshot
from shardtune.tuner import objective
from shardtune.tuner.prediction import memory_gate
from shardtune.tuner.verdict import disturbance, ranking, resume_check

log = logging.getLogger(__name__)

_SAME_END = 2
"""A platform fault is retried once; the same end twice is final."""
_SAME_END_OF_STUDY = 3
"""For the profile and validation runs a lost worker counts less: the study (or a measured trial) hangs on them. A lost node never
counts by itself: only all tries together end the run."""
_MOST_TRIES = 4
"""Whatever the ends: a run that never ends the same way twice is not retried forever."""


@dataclass(frozen=True)
class JudgedEnd:
    """How an attempt ended: exactly one of measurement, profile, restart, diagnosis and failure."""

    gpu_seconds: float
    measurement: Measurement | None = None
    model_summary: ModelSummary | None = None
    resume_check: ResumeMeasurement | None = None
    diagnosis: Diagnosis | None = None
    failure: Failure | None = None
    is_release: bool = False
    log_tail: str | None = None
    report_key: str | None = None

    @property
    def end(self) -> AttemptEnd:
        """For the attempt's row."""
        if self.is_release:
            return AttemptEnd.RELEASED
        return AttemptEnd(self.failure.kind) if self.failure else AttemptEnd.COMPLETE


def next_state(
    purpose: RunPurpose, ended: JudgedEnd, earlier: Sequence[AttemptEnd], might_fit: bool = False
) -> TrialState:
    """State of a run after an attempt; `earlier` are the ends of the attempts before it.

    `might_fit`: it ran out of memory near the edge, which has to happen twice before it counts.
    """
    failure = ended.failure
    if failure is None:
        is_pruned = purpose == RunPurpose.SEARCH and ended.measurement is not None and ended.measurement.is_pruned
        return TrialState.PRUNED if is_pruned else TrialState.COMPLETE
    if failure.kind is FailureKind.DISTURBED:
        # The service finds it only where it may be repeated; a worker could claim it for ever.
        return TrialState.WAITING if earlier.count(ended.end) < disturbance.MOST_REPEATS else TrialState.FAILED
    if failure.is_infeasible:
        is_first = ended.end not in earlier
        return TrialState.WAITING if might_fit and is_first else TrialState.INFEASIBLE
    if ended.is_release:
        return TrialState.WAITING
    if purpose == RunPurpose.MODEL_SUMMARY and failure.kind is FailureKind.CRASH:
        # Building on the meta device is deterministic: a second attempt would crash alike.
        return TrialState.FAILED
    lenient = purpose != RunPurpose.SEARCH and failure.kind is FailureKind.WORKER_LOST
    allowed = _MOST_TRIES if failure.kind is FailureKind.NODE_LOST else _SAME_END_OF_STUDY if lenient else _SAME_END
    tries = [end for end in earlier if end not in (AttemptEnd.RELEASED, AttemptEnd.DISTURBED)]
    final = sum(end == ended.end for end in tries) + 1 >= allowed or len(tries) + 1 >= _MOST_TRIES
    return TrialState.FAILED if final else TrialState.WAITING


def settle(session: Session, held: HeldRun, ended: JudgedEnd, now: datetime) -> None:
    """End the live attempt of a run and everything that follows from it.

    A measurement over the memory limit, or of another training, is a failure from here on.
    """
    study, run, attempt = held.study, held.run, held.attempt(held.run.attempt)
    assert run.state is TrialState.RUNNING and attempt is not None and attempt.end is None, "no live attempt"
    if run.purpose not in (RunPurpose.MODEL_SUMMARY, RunPurpose.TRACE):
        # Read before anything changes: reading would write what has changed, and the rest again later.
        assert held.trials
    failure = ended.failure or _fault_found(session, held, ended)
    if failure is None and ended.measurement is not None:
        counts = disturbances.judge(session, held, ended.measurement)
        if isinstance(counts, Failure):
            failure = counts
        else:
            ended = replace(ended, measurement=counts)
    judged = replace(ended, measurement=None if failure else ended.measurement, failure=failure)
    state = next_state(run.purpose, judged, held.ends, _might_fit(study, run, failure))
    _close_run(run, state, ended, failure, now)
    _close_attempt(held, attempt, ended, judged, now)
    _follow(session, held, judged, now)


def _close_run(run: RunRow, state: TrialState, ended: JudgedEnd, failure: Failure | None, now: datetime) -> None:
    """What is to be repeated keeps nothing of this attempt but its output."""
    transitions.run(run, state, now)
    is_over = state is not TrialState.WAITING
    run.lease_until, run.log_tail = None, ended.log_tail
    run.measurement = ended.measurement if is_over else None
    run.resume_check = ended.resume_check if is_over else None
    run.diagnosis = ended.diagnosis if is_over else None
    run.failure = failure if is_over else None


def _fault_found(session: Session, held: HeldRun, ended: JudgedEnd) -> Failure | None:
    study, run = held.study, held.run
    if ended.resume_check is not None:
        return resume_check.fault(ended.resume_check, study.spec.workload.precision)
    if ended.measurement is None:
        return None
    if ended.measurement.suspect is not None:
        message = f"the numbers cannot be true: {ended.measurement.suspect}"[:4000]
        return Failure(kind=FailureKind.SUSPECT, message=message, conditions=ended.measurement.conditions)
    over = objective.over_limit(ended.measurement, study.cluster, study.spec.objective)
    if over is not None or run.purpose != RunPurpose.VALIDATION or run.trial is None:
        return over
    history = [study_snapshot.observation(row, study.comparison_round) for row in held.trials]
    rejected = held.rejected
    return study_plan.confirm_failure(history, rejected, study.spec, run.trial.number, ended.measurement)


def _might_fit(study: StudyRow, run: RunRow, failure: Failure | None) -> bool:
    """A confirmation run needs no second try here: its trial has been measured before."""
    if failure is None or run.trial is None or run.purpose != RunPurpose.SEARCH:
        return False
    return memory_gate.near_the_edge(failure, run.trial.prediction, study.cluster, study.spec.objective)


def _close_attempt(held: HeldRun, attempt: AttemptRow, ended: JudgedEnd, judged: JudgedEnd, now: datetime) -> None:
    study, run = held.study, held.run
    attempt.end, attempt.failure, attempt.finished_at = judged.end, judged.failure, now
    attempt.gpu_seconds, attempt.report_key = ended.gpu_seconds, ended.report_key
    study.gpu_seconds += ended.gpu_seconds
    study.version += 1
    extra = {"study": study.id, "run": run.id, "attempt": run.attempt, "end": judged.end, "state": run.state.value}
    log.info("attempt ended", extra=extra | {"trial": run.trial.number if run.trial else None})


def _follow(session: Session, held: HeldRun, judged: JudgedEnd, now: datetime) -> None:
    """What the run's new state does to its trial and study."""
    study, run = held.study, held.run
    if run.purpose == RunPurpose.TRACE:
        return  # The study has its answer, and what a profile saw or broke does not touch it.
    if run.purpose == RunPurpose.MODEL_SUMMARY:
        _follow_profile(session, study, run, judged, now)
        return
    assert run.trial is not None
    if run.purpose == RunPurpose.SEARCH:
        transitions.trial(run.trial, run.state, now, None if run.state is TrialState.WAITING else judged.failure)
    elif run.state in (TrialState.INFEASIBLE, TrialState.FAILED) and not _stays(study, run, judged):
        # A trial that cannot be repeated is no answer, whoever's fault it is.
        assert judged.failure is not None
        if run.trial.state is TrialState.COMPLETE:
            transitions.trial(run.trial, TrialState.INFEASIBLE, now, judged.failure)
        study.final_comparison = None
    _judge(session, study, held.trials, now)


def _stays(study: StudyRow, run: RunRow, judged: JudgedEnd) -> bool:
    """A resume check that failed is told, and takes nothing away, where the platform failed or the baseline had won."""
    if run.purpose != RunPurpose.RESUME_CHECK:
        return False
    assert run.trial is not None and judged.failure is not None
    is_baseline = study.final_comparison is not None and run.trial.number == study.final_comparison.baseline
    return is_baseline or not resume_check.rejects(judged.failure)


def _follow_profile(session: Session, study: StudyRow, run: RunRow, judged: JudgedEnd, now: datetime) -> None:
    if run.state is TrialState.COMPLETE:
        study.model_summary = judged.model_summary
        assert judged.model_summary is not None
        if judged.model_summary.note is not None:
            study.notes = (*study.notes, judged.model_summary.note)
        if judged.model_summary.attention is not None:
            study.notes = (
                *study.notes,
                f"attention: {judged.model_summary.attention}, since the architecture has no fused one",
            )
        rejection = script_backends.narrow(study, judged.model_summary)
        if rejection is not None:
            transitions.end_study(session, study, StudyState.FAILED, rejection, now)
            return
        study.phase = StudyPhase.SEARCH
    elif run.state is not TrialState.WAITING:
        assert judged.failure is not None
        reason = f"the model could not be profiled ({judged.failure.kind.value}): {judged.failure.message}"
        transitions.end_study(session, study, StudyState.FAILED, reason, now)


def _judge(session: Session, study: StudyRow, trials: Sequence[TrialRow], now: datetime) -> None:
    """Compare all trajectories again, and turn out the trials that train something else."""
    rows = {row.number: row for row in trials}
    history = [study_snapshot.observation(row, study.comparison_round) for row in rows.values()]
    parity_groups = study_plan.judge(history, study.spec)
    turned_out = {n: why for n, why in parity_groups.infeasible.items() if rows[n].state is TrialState.COMPLETE}
    if turned_out:
        # One of them may have become complete just now, which is an event of its own.
        session.flush()
    for number, reason in turned_out.items():
        failure = Failure(kind=FailureKind.NUMERICS, message=reason)
        transitions.trial(rows[number], TrialState.INFEASIBLE, now, failure)
        log.warning("trial trains something else: %s", reason, extra={"study": study.id, "trial": number})
        if study.final_comparison is not None and number in study.final_comparison.members:
            study.final_comparison = None
    study.best_so_far = ranking.best_so_far(history, parity_groups)
