"""Run that a transaction has locked in order to end it."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from sqlalchemy.orm import Session, object_session

from shardtune.api_schemas.trials.trial import AttemptEnd, Rejection
from shardtune.db.queries import leases, trials
from shardtune.db.tables.studies import StudyRow
from shardtune.db.tables.trials import AttemptRow, RunRow, TrialRow


@dataclass
class LockedRun:
    """Run and its study, locked until the transaction ends; related rows are read on first use."""

    study: StudyRow
    run: RunRow
    attempts: Sequence[AttemptRow]
    """All attempts at the run, in order, including those that failed."""

    def attempt(self, number: int) -> AttemptRow | None:
        """Attempt of the locked run with this number; None if there is none."""
        return next((row for row in self.attempts if row.attempt == number), None)

    @property
    def current_attempt(self) -> AttemptRow:
        """Latest attempt at the locked run, which its worker executes as long as the run is in state `running`."""
        attempt = self.attempt(self.run.attempt)
        assert attempt is not None, "a run that began has an attempt"
        return attempt

    @property
    def ends(self) -> list[AttemptEnd]:
        """Ways in which the finished attempts at the run ended, in order."""
        return [row.end for row in self.attempts if row.end is not None]

    @cached_property
    def trials(self) -> Sequence[TrialRow]:
        """All trials of the run's study with their runs, for comparison with the run's result."""
        # Loaded lazily: ends of trace and model-summary runs need neither trials nor rejections.
        return trials.of_study(self._session, self.study.id)

    @cached_property
    def rejected(self) -> tuple[Rejection, ...]:
        """Configurations of the run's study that the memory gate rejected (predicted not to fit)."""
        return tuple(row.value for row in trials.rejections(self._session, self.study.id))

    @property
    def _session(self) -> Session:
        session = object_session(self.study)
        assert session is not None, "held beyond its transaction"
        return session


def lock_run(session: Session, run_id: str) -> LockedRun | None:
    """Lock a run and its study until the transaction ends; None if the run does not exist."""
    # The attempts are read after the lock: before it, another process could end one.
    rows = leases.lock_with_study(session, run_id)
    return LockedRun(*rows, leases.attempts(session, run_id)) if rows is not None else None
