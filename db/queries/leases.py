"""Queries on runs and attempts. Every write for a worker is guarded by attempt, session and state: if the guard matches
no row, the lease is lost and nothing changes."""

import secrets
from collections import defaultdict
from collections.abc import Collection, Sequence
from datetime import datetime
from functools import cache
from typing import Any

from sqlalchemy import Update, and_, bindparam, func, or_, select, text, update
from sqlalchemy.orm import Session, joinedload, load_only

from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.studies.recipes import RecipeRun
from shardtune.api_schemas.studies.study_state import StudyPurpose
from shardtune.api_schemas.trials.failures import Failure
from shardtune.api_schemas.trials.measure_plan import StepTimeRange
from shardtune.api_schemas.trials.progress import Progress
from shardtune.api_schemas.trials.trial import OPEN_TRIAL_STATES, AttemptEnd, RunPurpose, TrialState
from shardtune.db.queries import webhooks
from shardtune.db.tables.studies import StudyRow
from shardtune.db.tables.trials import AttemptRow, RunRow, TrialRow
from shardtune.db.tables.workers import WorkerRow

# Statements of every claim and report are made once: making one costs more than running it.
_WITH_STUDY = (
    select(StudyRow, RunRow)
    .join(RunRow, RunRow.study_id == StudyRow.id)
    .where(RunRow.id == bindparam("run_id"))
    # In this order, by note [lock order]; FOR NO KEY UPDATE: rows that refer to them may still be written.
    .with_for_update(key_share=True, of=(StudyRow, RunRow))
    .execution_options(populate_existing=True)
)
_WORKER_AND_HELD = (
    select(WorkerRow, RunRow, webhooks.ANY_ENABLED)
    # The index's own words: planned once for every value, a parameter would not be known to mean what the index has.
    .outerjoin(RunRow, and_(RunRow.worker_session == WorkerRow.session, text("runs.state = 'running'")))
    .where(WorkerRow.session == bindparam("worker_session"))
    # What a lease says; mostly there is none.
    .options(
        load_only(
            RunRow.study_id,
            RunRow.trial_id,
            RunRow.purpose,
            RunRow.undecided_s,
            RunRow.recipe,
            RunRow.rehearsed_config,
            RunRow.state,
            RunRow.attempt,
            RunRow.worker_session,
            RunRow.started_at,
            RunRow.progress,
            RunRow.lease_repeats,
        )
    )
)
_NEXT_WAITING = (
    select(RunRow)
    .where(RunRow.study_id == bindparam("of_study"), RunRow.state == TrialState.WAITING)
    .order_by(RunRow.position)
    .limit(1)
    .options(joinedload(RunRow.trial))
)
_OPEN_STATES = (
    select(RunRow.study_id, RunRow.state)
    .where(RunRow.study_id.in_(bindparam("study_ids", expanding=True)), RunRow.state.in_(OPEN_TRIAL_STATES))
    .distinct()
)
_EXPIRED = (
    select(RunRow)
    .where(RunRow.state == TrialState.RUNNING, RunRow.lease_until < bindparam("now"))
    .order_by(RunRow.lease_until)
)
_OVERDUE = (
    select(RunRow)
    .where(
        RunRow.state == TrialState.RUNNING,
        or_(RunRow.deadline_at < bindparam("now"), RunRow.deadline_at.is_(None)),
    )
    .order_by(RunRow.id)
)
_ATTEMPTS = (
    select(AttemptRow, webhooks.ANY_ENABLED)
    .where(AttemptRow.run_id == bindparam("run_id"))
    .order_by(AttemptRow.attempt)
)


def add_run(
    session: Session,
    study: StudyRow,
    trial: TrialRow | None,
    purpose: RunPurpose,
    now: datetime,
    comparison_block: int | None = None,
    undecided_s: StepTimeRange | None = None,
    recipe: RecipeRun | None = None,
    rehearsed_config: TrialConfig | None = None,
) -> RunRow:
    """Add a waiting run to a study. With a `comparison_block`, the run belongs to the study's current final
    comparison (paired runs that decide), or to the later comparison of recipes (numerical formats and optimizers).
    The caller must have locked the study."""
    following = select(func.coalesce(func.max(RunRow.position) + 1, 0)).where(RunRow.study_id == study.id)
    run = RunRow(
        id=f"run-{secrets.token_hex(8)}",
        study_id=study.id,
        trial=trial,
        position=following.scalar_subquery(),
        purpose=purpose,
        comparison_round=study.comparison_round if comparison_block is not None else 0,
        comparison_block=comparison_block,
        undecided_s=undecided_s,
        recipe=recipe,
        rehearsed_config=rehearsed_config,
        state=TrialState.WAITING,
        attempt=0,
        created_at=now,
    )
    session.add(run)
    return run


def get(session: Session, run_id: str) -> RunRow | None:
    """Return a run without locking it."""
    return session.get(RunRow, run_id, options=[joinedload(RunRow.trial)])


def lock_with_study(session: Session, run_id: str) -> tuple[StudyRow, RunRow] | None:
    """Return a run and its study, both locked until the transaction ends, as they are stored now."""
    row = session.execute(_WITH_STUDY, {"run_id": run_id}).one_or_none()
    return (row[0], row[1]) if row is not None else None


def worker_and_lease(session: Session, worker_session: str) -> tuple[WorkerRow, RunRow | None] | None:
    """Return the worker to which a session belongs, with the lease that it has now."""
    row = session.execute(_WORKER_AND_HELD, {"worker_session": worker_session}).one_or_none()
    if row is None:
        return None
    webhooks.note_whether_any(session, row[2])
    return row[0], row[1]


def next_waiting(session: Session, study_id: str) -> RunRow | None:
    """Return the first waiting run of a study. The caller must have locked the study."""
    return session.scalars(_NEXT_WAITING, {"of_study": study_id}).one_or_none()


def open_runs(session: Session, study_id: str) -> Sequence[RunRow]:
    """Return the runs of a study that are waiting or running."""
    return session.scalars(
        select(RunRow).where(RunRow.study_id == study_id, RunRow.state.in_(OPEN_TRIAL_STATES)).order_by(RunRow.position)
    ).all()


def failed_runs(session: Session, study_id: str, purpose: RunPurpose) -> Sequence[RunRow]:
    """Return the runs of a study with a purpose that ended without a result."""
    states = (TrialState.FAILED, TrialState.INFEASIBLE)
    query = select(RunRow).where(RunRow.study_id == study_id, RunRow.purpose == purpose, RunRow.state.in_(states))
    return session.scalars(query).all()


def open_states(session: Session, study_ids: Sequence[str]) -> dict[str, set[TrialState]]:
    """Return, for each study, whether it has waiting runs, running runs or both; studies with neither are left out."""
    states: defaultdict[str, set[TrialState]] = defaultdict(set)
    for study_id, state in session.execute(_OPEN_STATES, {"study_ids": list(study_ids)}):
        states[study_id].add(state)
    return dict(states)


def count_attempts_by_end(
    session: Session, study_id: str, end: AttemptEnd, worker_id: str | None = None, after: datetime | None = None
) -> int:
    """Return the number of attempts at a study's runs that ended with the given reason; of one worker alone, or after a
    point in time, where these are given."""
    query = select(func.count()).select_from(AttemptRow).join(RunRow, AttemptRow.run_id == RunRow.id)
    query = query.where(RunRow.study_id == study_id, AttemptRow.end == end)
    if worker_id is not None:
        query = query.where(AttemptRow.worker_id == worker_id)
    return session.scalars(query if after is None else query.where(AttemptRow.finished_at > after)).one()


def expired(session: Session, now: datetime) -> Sequence[RunRow]:
    """Return the runs in state `running` whose lease has expired."""
    return session.scalars(_EXPIRED, {"now": now}).all()


def overdue(session: Session, now: datetime) -> Sequence[RunRow]:
    """Return the running runs whose deadline has passed, or whose deadline was never computed."""
    return session.scalars(_OVERDUE, {"now": now}).all()


def runs_of_earlier_sessions(session: Session, worker: WorkerRow) -> Sequence[RunRow]:
    """Return the running runs whose lease belongs to an earlier session of a worker, which has started again since."""
    return session.scalars(
        select(RunRow).where(
            RunRow.worker_id == worker.id,
            RunRow.state == TrialState.RUNNING,
            RunRow.worker_session != worker.session,
        )
    ).all()


def start(session: Session, run: RunRow, worker: WorkerRow, now: datetime, lease_until: datetime) -> AttemptRow:
    """Begin the next attempt at a run and return it; the caller changes the run's state, and says how long the attempt
    may wait for a quiet machine, if it may."""
    run.attempt += 1
    run.worker_id, run.worker_session, run.host_id = worker.id, worker.session, worker.host_id
    run.fingerprint_key, run.measured_for = worker.fingerprint_key, worker.project_id
    run.started_at, run.lease_until = now, lease_until
    # Only the wait of earlier attempts is kept: it counts towards the study's limit.
    waited_s = run.progress.waited_s if run.progress is not None else None
    run.progress = None if waited_s is None else Progress(phase="starting", waited_s=waited_s)
    run.lease_repeats, run.deadline_at, run.extended_at_progress = 0, None, None
    attempt = AttemptRow(
        run=run,
        attempt=run.attempt,
        worker_id=worker.id,
        worker_session=worker.session,
        started_at=now,
        waited_before_s=waited_s or 0.0,
        may_wait_s=0.0,
    )
    session.add(attempt)
    return attempt


def waited_s(session: Session, study_id: str) -> float:
    """Return the seconds that all runs of a study have waited until their machines were quiet."""
    stored = session.scalars(select(RunRow.progress).where(RunRow.study_id == study_id, RunRow.progress.is_not(None)))
    return sum(progress.waited_s or 0.0 for progress in stored if progress is not None)


def write_guarded(session: Session, run_id: str, attempt: int, worker_session: str, **values: Any) -> bool:
    """Change a run if its current attempt belongs to this worker session; return False if another session, or no
    session, holds the run."""
    of_lease = {"_run_id": run_id, "_attempt": attempt, "_session": worker_session}
    # By the connection: rows that the session has are none of the holder's business.
    return session.connection().execute(_guarded(tuple(sorted(values))), of_lease | values).rowcount == 1


@cache
def _guarded(names: tuple[str, ...]) -> Update:
    return (
        update(RunRow)
        .where(
            RunRow.id == bindparam("_run_id"),
            RunRow.attempt == bindparam("_attempt"),
            RunRow.worker_session == bindparam("_session"),
            RunRow.state == TrialState.RUNNING,
        )
        .values({name: bindparam(name) for name in names})
    )


def attempt_of(session: Session, run_id: str, attempt: int) -> AttemptRow | None:
    """Return the attempt at a run with a given number; None if it does not exist."""
    return session.scalars(
        select(AttemptRow).where(AttemptRow.run_id == run_id, AttemptRow.attempt == attempt)
    ).one_or_none()


def newest_preemption(session: Session, study_id: str, worker_session: str) -> datetime | None:
    """Return the time at which a worker session was last taken from a run of a study for a user's study; None if it was
    not."""
    query = select(func.max(AttemptRow.finished_at)).join(RunRow, RunRow.id == AttemptRow.run_id)
    return session.scalars(
        query.where(
            RunRow.study_id == study_id,
            AttemptRow.worker_session == worker_session,
            AttemptRow.end == AttemptEnd.PREEMPTED,
        )
    ).one()


def has_ended_users_run(session: Session, worker_session: str, since: datetime) -> bool:
    """Return whether a worker session ended an attempt at a run of a user's study after a given moment."""
    query = (
        select(AttemptRow.id)
        .join(RunRow, RunRow.id == AttemptRow.run_id)
        .join(StudyRow, StudyRow.id == RunRow.study_id)
        .where(AttemptRow.finished_at >= since, AttemptRow.started_at >= since)
        .where(AttemptRow.worker_session == worker_session, StudyRow.purpose == StudyPurpose.USER)
    )
    return session.scalars(query.limit(1)).first() is not None


def failures_of_attempts(session: Session, run_ids: Collection[str]) -> dict[tuple[str, int], Failure]:
    """Return the failures of attempts at some runs, by the run's id and the attempt's number."""
    query = select(AttemptRow.run_id, AttemptRow.attempt, AttemptRow.failure)
    rows = session.execute(query.where(AttemptRow.run_id.in_(run_ids), AttemptRow.failure.is_not(None)))
    return {(run_id, attempt): failure for run_id, attempt, failure in rows if failure is not None}


def attempts(session: Session, run_id: str) -> list[AttemptRow]:
    """Return the attempts at a run in order. The caller must have locked the run's study."""
    rows = session.execute(_ATTEMPTS, {"run_id": run_id}).all()
    webhooks.note_whether_any(session, not rows or rows[0][1])
    return [row[0] for row in rows]
