"""A run in the hands of a transaction that will settle it."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from sqlalchemy.orm import Session, object_session

from shardtune.api_schemas.trials.trial import AttemptEnd, Rejection
from shardtune.db.queries import leases, trials
from shardtune.db.tables.studies import AttemptRow, RunRow, StudyRow, TrialRow


@dataclass
class HeldRun:
    """Study and run are held until the transaction ends; what belongs to them is read since."""

    study: StudyRow
    run: RunRow
    attempts: Sequence[AttemptRow]
    """At this run, in order."""

    def attempt(self, number: int) -> AttemptRow | None:
        """One of them."""
        return next((row for row in self.attempts if row.attempt == number), None)

    @property
    def ends(self) -> list[AttemptEnd]:
        """How the finished ones ended."""
        return [row.end for row in self.attempts if row.end is not None]

    @cached_property
    def trials(self) -> Sequence[TrialRow]:
        """All trials of the study with their runs: what a result is held against."""
        return trials.of_study(self._session, self.study.id)

    @cached_property
    def rejected(self) -> tuple[Rejection, ...]:
        """What the memory gate rejected in the study."""
        return tuple(row.value for row in trials.rejections(self._session, self.study.id))

    @property
    def _session(self) -> Session:
        session = object_session(self.study)
        assert session is not None, "held beyond its transaction"
        return session


def hold(session: Session, run_id: str) -> HeldRun | None:
    """The run as it stands, and nobody changes it but the caller; None: there is no such run."""
    found = leases.lock_with_study(session, run_id)
    return HeldRun(*found, leases.attempts(session, run_id)) if found is not None else None
