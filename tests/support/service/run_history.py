"""Check a database after the fact: each result belongs to one attempt, sums agree, events tell the same story."""

import itertools
from collections import Counter
from collections.abc import Collection

from sqlalchemy import func, select

from shardtune.api_schemas.trials.trial import TrialState
from shardtune.db.session import Database
from shardtune.db.tables.events import EventRow
from shardtune.db.tables.studies import StudyRow
from shardtune.db.tables.trials import AttemptRow, RunRow, TrialRow

_TOLERANCE = 1e-6


def faults(
    database: Database, applied: Counter[tuple[str, int]] | None = None, only: Collection[str] | None = None
) -> list[str]:
    """Everything that must not be, in words; empty when the history is right.

    `applied` is what workers were told; `only` limits the check to some studies.
    """
    if only is None:
        with database.read() as session:
            only = session.scalars(select(StudyRow.id)).all()
    with database.read() as session:
        studies = session.scalars(select(StudyRow).where(StudyRow.id.in_(only))).all()
        runs = session.scalars(select(RunRow).where(RunRow.study_id.in_(only))).all()
        attempts = session.scalars(select(AttemptRow).join(RunRow).where(RunRow.study_id.in_(only))).all()
        trials = session.scalars(select(TrialRow).where(TrialRow.study_id.in_(only))).all()
        events = session.execute(
            select(EventRow.study_id, func.count(), func.min(EventRow.number), func.max(EventRow.number))
            .where(EventRow.study_id.in_(only))
            .group_by(EventRow.study_id)
        ).all()
        event_rows = session.execute(
            select(EventRow.study_id, EventRow.type, func.count())
            .where(EventRow.study_id.in_(only))
            .group_by(EventRow.study_id, EventRow.type)
        ).all()
    found_faults = _attempts(runs, attempts) + _sums(studies, runs, attempts) + _ends(studies, trials, runs)
    for study_id, count, first, last in events:
        if (first, last) != (1, count):
            found_faults.append(f"{study_id}: {count} events are numbered {first} to {last}")
    leased = Counter({study_id: count for study_id, kind, count in event_rows if kind == "run.leased"})
    study_of = {run.id: run.study_id for run in runs}
    if leased != Counter(study_of[attempt.run_id] for attempt in attempts):
        found_faults.append("the events tell of another number of leases than there are attempts")
    return found_faults + _answers(attempts, applied or Counter())


def states(database: Database) -> Counter[str]:
    """Number of studies by state."""
    with database.read() as session:
        return Counter(state.value for state in session.scalars(select(StudyRow.state)))


def _attempts(runs: list[RunRow], attempts: list[AttemptRow]) -> list[str]:
    found_faults = []
    by_run: dict[str, list[AttemptRow]] = {}
    for attempt in attempts:
        by_run.setdefault(attempt.run_id, []).append(attempt)
    for run in runs:
        mine = sorted(by_run.get(run.id, []), key=lambda attempt: attempt.attempt)
        if [attempt.attempt for attempt in mine] != list(range(1, run.attempt + 1)):
            found_faults.append(f"{run.id} counts {run.attempt} attempts, stored are {[a.attempt for a in mine]}")
        complete = [attempt.attempt for attempt in mine if attempt.end == "complete"]
        if (run.state is TrialState.COMPLETE) != bool(complete) or len(complete) > 1:
            found_faults.append(f"{run.id} is {run.state.value}, its attempts {complete} are complete")
        still = [attempt.attempt for attempt in mine if attempt.end is None]
        if still != ([run.attempt] if run.state is TrialState.RUNNING else []):
            found_faults.append(f"{run.id} is {run.state.value}, its attempts {still} have no end")
        for before, after in itertools.pairwise(mine):
            if before.finished_at is None or before.finished_at > after.started_at:
                found_faults.append(
                    f"{run.id}: attempt {after.attempt} began before attempt {before.attempt} had ended"
                )
    return found_faults


def _sums(studies: list[StudyRow], runs: list[RunRow], attempts: list[AttemptRow]) -> list[str]:
    study_of = {run.id: run.study_id for run in runs}
    spent: Counter[str] = Counter()
    for attempt in attempts:
        spent[study_of[attempt.run_id]] += attempt.gpu_seconds or 0.0
    return [
        f"{study.id} counts {study.gpu_seconds} GPU-seconds, its attempts {spent[study.id]}"
        for study in studies
        if abs(study.gpu_seconds - spent[study.id]) > _TOLERANCE * max(1.0, study.gpu_seconds)
    ]


def _ends(studies: list[StudyRow], trials: list[TrialRow], runs: list[RunRow]) -> list[str]:
    over = {study.id for study in studies if study.finished_at is not None}
    found_faults = [f"{study.id} is {study.state.value} without an end" for study in studies if study.id not in over]
    found_faults += [
        f"trial {row.number} of {row.study_id} is {row.state.value}" for row in trials if row.state.is_open
    ]
    return found_faults + [f"{row.id} is {row.state.value}" for row in runs if row.state.is_open]


def _answers(attempts: list[AttemptRow], applied: Counter[tuple[str, int]]) -> list[str]:
    ends = {(attempt.run_id, attempt.attempt): attempt.end for attempt in attempts}
    found_faults = [f"the report of {key} was applied {count} times" for key, count in applied.items() if count > 1]
    return found_faults + [
        f"{key} was answered as applied and is {ends.get(key)}" for key in applied if ends.get(key) is None
    ]
