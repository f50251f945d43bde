"""State changes of trials, runs and studies; no other module changes their states."""

from datetime import datetime

from sqlalchemy.orm import Session

from shardtune.api_schemas.studies.reasons import StudyReason
from shardtune.api_schemas.studies.study_state import StudyPhase, StudyState
from shardtune.api_schemas.trials.failures import Failure
from shardtune.api_schemas.trials.trial import ALLOWED_MOVES, AttemptEnd, TrialState
from shardtune.db.queries import leases
from shardtune.db.tables.studies import StudyRow
from shardtune.db.tables.trials import RunRow, TrialRow
from shardtune.service.lifecycle import charges


class IllegalTransition(AssertionError):
    """Error in the program: the table of the state machine does not allow this change of state."""


def check(state: TrialState, new_state: TrialState) -> None:
    """Check that the state machine's table allows a change of state.

    Raises:
        IllegalTransition: the table does not allow the change.
    """
    if new_state not in ALLOWED_MOVES[state]:
        raise IllegalTransition(f"{state.value} → {new_state.value}")


def trial(row: TrialRow, new_state: TrialState, now: datetime, failure: Failure | None = None) -> None:
    """Move a trial to a new state. A final state also stores the time, and the failure if there is one."""
    check(row.state, new_state)
    row.state = new_state
    row.finished_at = None if new_state.is_open else now
    row.failure = failure


def run(row: RunRow, new_state: TrialState, now: datetime) -> None:
    """Move a run to a new state. This is done either while no worker executes it, or to take it away from its worker."""
    check(row.state, new_state)
    row.state = new_state
    row.finished_at = None if new_state.is_open else now


def begin_study(study: StudyRow, now: datetime) -> None:
    """Start a study that was waiting for a worker, because a worker that can run it has registered."""
    assert study.state is StudyState.WAITING, study.state.value
    study.state, study.started_at = StudyState.RUNNING, now
    # Each change raises the version: cached snapshots and waiting requests for work are compared with it.
    study.version += 1


def pause_study(study: StudyRow, paused: bool) -> None:
    """Stop leasing runs of a study, or resume leasing them. Runs that execute now may finish, and their results
    count.
    """
    assert study.state.is_open, study.state.value
    study.state = StudyState.PAUSED if paused else StudyState.RUNNING
    study.version += 1


def end_study(session: Session, study: StudyRow, state: StudyState, reason: StudyReason | None, now: datetime) -> None:
    """End a study for good, and cancel its unfinished runs; their workers are informed in the response to their next
    heartbeat.
    """
    assert study.state.is_open, f"{study.state.value} → {state.value}"
    # The attempt is closed here, not by the worker's report: that report will be rejected as a lost lease.
    for row in leases.open_runs(session, study.id):
        if row.state is TrialState.RUNNING:
            attempt = leases.attempt_of(session, row.id, row.attempt)
            assert attempt is not None
            # Until now, whatever a late report would say: else quotas could be evaded by cancelling studies.
            attempt.gpu_seconds = charges.until(study, row, attempt, now)
            attempt.end, attempt.finished_at = AttemptEnd.CANCELLED, now
            study.gpu_seconds += attempt.gpu_seconds
        run(row, TrialState.CANCELLED, now)
        if row.trial is not None and row.trial.state.is_open:
            trial(row.trial, TrialState.CANCELLED, now)
    study.state, study.phase, study.finished_at = state, StudyPhase.DONE, now
    if reason is not None:
        study.explain(reason)
    study.version += 1


def reopen_study(study: StudyRow) -> None:
    """Reopen an ended study, in the phase (search or final comparison) that the caller has set."""
    assert not study.state.is_open and study.phase is not StudyPhase.DONE, study.state.value
    study.state, study.finished_at = StudyState.RUNNING, None
    study.version += 1
