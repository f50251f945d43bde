"""The only code that changes the state of a trial, a run or a study."""

from datetime import datetime

from sqlalchemy.orm import Session

from shardtune.api_schemas.studies.study import StudyPhase, StudyState
from shardtune.api_schemas.trials.failures import Failure
from shardtune.api_schemas.trials.trial import ALLOWED_MOVES, AttemptEnd, TrialState
from shardtune.db.queries import leases
from shardtune.db.tables.studies import RunRow, StudyRow, TrialRow


class IllegalMove(AssertionError):
    """A bug of ours: the state machine has no such arrow."""


def check(here: TrialState, there: TrialState) -> None:
    """Raise `IllegalMove` unless the table allows the move."""
    if there not in ALLOWED_MOVES[here]:
        raise IllegalMove(f"{here.value} → {there.value}")


def trial(row: TrialRow, to: TrialState, now: datetime, failure: Failure | None = None) -> None:
    """Move a trial; an end is stamped, and the reason stored with it."""
    check(row.state, to)
    row.state = to
    row.finished_at = None if to.is_open else now
    row.failure = failure


def run(row: RunRow, to: TrialState, now: datetime) -> None:
    """Move a run that no worker holds (or that is taken away from its worker)."""
    check(row.state, to)
    row.state = to
    row.finished_at = None if to.is_open else now


def begin_study(study: StudyRow, now: datetime) -> None:
    """The worker that it waited for is there."""
    assert study.state is StudyState.WAITING, study.state.value
    study.state, study.started_at = StudyState.RUNNING, now
    study.version += 1


def pause_study(study: StudyRow, paused: bool) -> None:
    """Stop giving out runs of a study, or go on. What runs already may finish, and counts."""
    assert study.state.is_open, study.state.value
    study.state = StudyState.PAUSED if paused else StudyState.RUNNING
    study.version += 1


def end_study(session: Session, study: StudyRow, state: StudyState, reason: str | None, now: datetime) -> None:
    """End a study for good. What is still open in it is cancelled: workers hear of it with their next heartbeat."""
    assert study.state.is_open, f"{study.state.value} → {state.value}"
    for row in leases.open_runs(session, study.id):
        if row.state is TrialState.RUNNING:
            attempt = leases.attempt_of(session, row.id, row.attempt)
            assert attempt is not None
            attempt.end, attempt.finished_at = AttemptEnd.CANCELLED, now
        run(row, TrialState.CANCELLED, now)
        if row.trial is not None and row.trial.state.is_open:
            trial(row.trial, TrialState.CANCELLED, now)
    study.state, study.phase, study.finished_at = state, StudyPhase.DONE, now
    study.reason = reason or study.reason
    study.version += 1


def reopen_study(study: StudyRow) -> None:
    """Let an ended study run again, in the phase that the caller has set."""
    assert not study.state.is_open and study.phase is not StudyPhase.DONE, study.state.value
    study.state, study.finished_at = StudyState.RUNNING, None
    study.version += 1
