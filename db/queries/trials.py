"""Queries on trials, comparison blocks (validation runs that are compared, and therefore executed by the same worker),
and rejected configurations."""

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import and_, bindparam, func, or_, select
from sqlalchemy.orm import Session, aliased, defer, selectinload, undefer

from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.trials.measurements import Measurement
from shardtune.api_schemas.trials.predictions import TrialPrediction
from shardtune.api_schemas.trials.trial import (
    FEASIBLE_STATES,
    Rejection,
    RunPurpose,
    TrialOrigin,
    TrialReason,
    TrialState,
)
from shardtune.db.tables.trials import AttemptRow, RejectionRow, RunRow, TrialRow

# Statements of every step of a study are made once: making one costs more than running it.
_OF_STUDY = (
    select(TrialRow)
    .where(TrialRow.study_id == bindparam("of_study"))
    .order_by(TrialRow.number)
    .execution_options(populate_existing=True)
)
_WITH_RUNS = _OF_STUDY.options(
    selectinload(TrialRow.runs).options(defer(RunRow.progress), defer(RunRow.log_tail)), defer(TrialRow.prediction)
)
_WITH_ATTEMPTS = _OF_STUDY.options(
    selectinload(TrialRow.runs).selectinload(RunRow.attempts).joinedload(AttemptRow.worker)
)
_BY_NUMBER = select(TrialRow).where(
    TrialRow.study_id == bindparam("of_study"), TrialRow.number == bindparam("of_number")
)
_COUNT = select(func.count()).select_from(TrialRow).where(TrialRow.study_id == bindparam("of_study"))
_REJECTIONS = select(RejectionRow).where(RejectionRow.study_id == bindparam("of_study")).order_by(RejectionRow.id)
_REJECTED_KEYS = select(RejectionRow.config_key).where(RejectionRow.study_id == bindparam("of_study"))
_MEASURED_IDS = (
    select(RunRow.id)
    .where(
        RunRow.fingerprint_key == bindparam("measured_on"),
        # A worker says itself what its fingerprint is; only its own project takes its word for what it measured.
        or_(RunRow.measured_for.is_(None), RunRow.measured_for == bindparam("project_id")),
        RunRow.purpose == RunPurpose.SEARCH,
        RunRow.finished_at.is_not(None),
        RunRow.state.in_([*FEASIBLE_STATES, TrialState.INFEASIBLE]),
        RunRow.measurement.is_not(None),
    )
    .order_by(RunRow.finished_at.desc(), RunRow.id.desc())
    .limit(bindparam("at_most"))
)
_MEASURED_RUNS = (
    select(RunRow.id, RunRow.study_id, TrialRow.config, RunRow.measurement)
    .join(TrialRow, TrialRow.id == RunRow.trial_id)
    .where(RunRow.id.in_(bindparam("run_ids", expanding=True)))
)
_PROFILED_FOR = select(RunRow.measured_for).where(
    RunRow.study_id == bindparam("of_study"),
    RunRow.purpose == RunPurpose.MODEL_SUMMARY,
    RunRow.measured_for.is_not(None),
)
_OTHER = aliased(RunRow)
# Made once: an alias adapts each of its columns anew, which was a tenth of what a lease costs (SQLAlchemy 2.1).
_SAME_BLOCK = (
    _OTHER.study_id == RunRow.study_id,
    _OTHER.purpose == RunRow.purpose,
    _OTHER.comparison_round == RunRow.comparison_round,
    _OTHER.comparison_block == RunRow.comparison_block,
    _OTHER.id != RunRow.id,
)
_WORKERS_OF_OPEN_BLOCKS = (
    select(RunRow.study_id, _OTHER.worker_id)
    .join(_OTHER, and_(*_SAME_BLOCK))
    .where(
        RunRow.study_id.in_(bindparam("study_ids", expanding=True)),
        RunRow.state == TrialState.WAITING,
        _OTHER.worker_id.is_not(None),
    )
)
_WORKERS_OF_BLOCK = (
    select(RunRow.worker_id)
    .where(
        RunRow.study_id == bindparam("of_study"),
        RunRow.purpose == bindparam("of_purpose"),
        RunRow.comparison_round == bindparam("of_round"),
        RunRow.comparison_block == bindparam("of_block"),
        RunRow.id != bindparam("run_id"),
        RunRow.worker_id.is_not(None),
    )
    .distinct()
)


def add(
    session: Session,
    study_id: str,
    number: int,
    config: TrialConfig,
    origin: TrialOrigin,
    now: datetime,
    prediction: TrialPrediction | None = None,
    reason: TrialReason | None = None,
) -> TrialRow:
    """Add a waiting trial to a study. Its number is the count of the study's earlier trials. The caller must have
    locked the study."""
    row = TrialRow(
        study_id=study_id,
        number=number,
        state=TrialState.WAITING,
        origin=origin,
        config=config,
        config_key=config.content_key(),
        prediction=prediction,
        reason=reason,
        created_at=now,
    )
    session.add(row)
    return row


def reasons(session: Session, study_id: str, numbers: Collection[int]) -> dict[int, TrialReason]:
    """Return the reasons why the sampler suggested some trials of a study, by the trial's number; trials without a
    reason are left out."""
    query = select(TrialRow.number, TrialRow.reason).where(TrialRow.study_id == study_id, TrialRow.number.in_(numbers))
    return {number: reason for number, reason in session.execute(query) if reason is not None}


def of_study(session: Session, study_id: str, with_attempts: bool = False) -> Sequence[TrialRow]:
    """Return a study's trials, sorted by number, with their runs (and, if requested, the attempts). Large columns
    that are only displayed are not read until they are used, because every step of a study reads its trials."""
    return session.scalars(_WITH_ATTEMPTS if with_attempts else _WITH_RUNS, {"of_study": study_id}).all()


def page(
    session: Session, study_id: str, states: Sequence[TrialState], after: int | None, limit: int
) -> Sequence[TrialRow]:
    """Return the trials of a study, sorted by number and starting behind the number `after`, with their runs and
    attempts."""
    load = selectinload(TrialRow.runs).selectinload(RunRow.attempts).joinedload(AttemptRow.worker)
    query = select(TrialRow).where(TrialRow.study_id == study_id).order_by(TrialRow.number).limit(limit).options(load)
    if states:
        query = query.where(TrialRow.state.in_(states))
    return session.scalars(query if after is None else query.where(TrialRow.number > after)).all()


def count(session: Session, study_id: str) -> int:
    """Return the number of trials of a study."""
    return session.scalars(_COUNT, {"of_study": study_id}).one()


def with_validation_runs(session: Session, study_id: str, number: int | None = None) -> Sequence[TrialRow]:
    """Return the trials that have a validation run, and the trial with the given number, with their runs and
    attempts."""
    load = selectinload(TrialRow.runs).selectinload(RunRow.attempts).joinedload(AttemptRow.worker)
    repeated = select(RunRow.trial_id).where(RunRow.study_id == study_id, RunRow.purpose == RunPurpose.VALIDATION)
    query = select(TrialRow).where(
        TrialRow.study_id == study_id, or_(TrialRow.id.in_(repeated), TrialRow.number == number)
    )
    return session.scalars(query.order_by(TrialRow.number).options(load)).all()


def by_number(session: Session, study_id: str, number: int) -> TrialRow | None:
    return session.scalars(_BY_NUMBER, {"of_study": study_id, "of_number": number}).one_or_none()


def newest_trace(session: Session, trial: TrialRow) -> RunRow | None:
    """Return a trial's last run under the profiler, with its diagnosis and attempts."""
    query = select(RunRow).where(RunRow.trial_id == trial.id, RunRow.purpose == RunPurpose.TRACE)
    load = (undefer(RunRow.diagnosis), selectinload(RunRow.attempts).joinedload(AttemptRow.worker))
    return session.scalars(query.order_by(RunRow.position.desc()).limit(1).options(*load)).one_or_none()


def measured_ids(session: Session, fingerprint_key: str, project_id: str, at_most: int) -> Sequence[str]:
    """Return the newest search runs measured on a fingerprint (hardware and software) that a project may use, newest
    first; a run's stored content never changes."""
    values = {"measured_on": fingerprint_key, "project_id": project_id, "at_most": at_most}
    return session.scalars(_MEASURED_IDS, values).all()


class MeasuredRun(NamedTuple):
    """Search run of a trial (the run that first measures it), with its configuration and measurement."""

    run_id: str
    study_id: str
    config: TrialConfig
    measurement: Measurement | None


def measured_runs(session: Session, run_ids: Collection[str]) -> list[MeasuredRun]:
    """Return the runs with the given ids, with the configuration and measurement of each."""
    return [MeasuredRun(*row) for row in session.execute(_MEASURED_RUNS, {"run_ids": list(run_ids)})]


def model_summary_project(session: Session, study_id: str) -> str | None:
    """Return the project that owns the worker which counted the sizes and FLOPs of the study's model; None if that
    worker serves every project."""
    return session.scalars(_PROFILED_FOR, {"of_study": study_id}).first()


def rejections(
    session: Session, study_id: str, after: int | None = None, limit: int | None = None
) -> Sequence[RejectionRow]:
    """Return a study's rejected configurations in the order of rejection, starting behind the row `after`."""
    query = _REJECTIONS if limit is None else _REJECTIONS.limit(limit)
    return session.scalars(
        query if after is None else query.where(RejectionRow.id > after), {"of_study": study_id}
    ).all()


def rejected_keys(session: Session, study_id: str) -> frozenset[str]:
    """Return the content keys (hashes) of a study's rejected configurations."""
    return frozenset(session.scalars(_REJECTED_KEYS, {"of_study": study_id}))


def reject(session: Session, study_id: str, values: Iterable[Rejection], now: datetime) -> None:
    """Store rejected configurations; already stored ones stay unchanged. The caller must have locked the study."""
    stored_keys = set(rejected_keys(session, study_id))
    for value in values:
        key = value.config.content_key()
        if key not in stored_keys:
            stored_keys.add(key)
            session.add(RejectionRow(study_id=study_id, config_key=key, value=value, created_at=now))
    session.flush()


def workers_of_open_blocks(session: Session, study_ids: Sequence[str]) -> dict[str, frozenset[str]]:
    """Return, for each study, the ids of the workers that have begun a comparison block (one validation run of each
    compared configuration) in which a run is still waiting."""
    workers: dict[str, frozenset[str]] = {}
    for study_id, worker_id in session.execute(_WORKERS_OF_OPEN_BLOCKS, {"study_ids": list(study_ids)}):
        assert worker_id is not None
        workers[study_id] = workers.get(study_id, frozenset()) | {worker_id}
    return workers


def workers_of_block(session: Session, run: RunRow) -> frozenset[str]:
    """Return the ids of the workers that execute, or executed, the other runs of the comparison block that a run
    belongs to. A block contains one validation run of each compared configuration."""
    same = {
        "of_study": run.study_id,
        "of_purpose": run.purpose,
        "of_round": run.comparison_round,
        "of_block": run.comparison_block,
    }
    # The run itself may be new, and written once it is given out.
    with session.no_autoflush:
        worker_ids = session.scalars(_WORKERS_OF_BLOCK, same | {"run_id": run.id})
        return frozenset(worker_id for worker_id in worker_ids if worker_id is not None)
