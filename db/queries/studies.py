"""Queries on studies. Studies are locked before their runs (note [lock order] in db.session)."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Select, bindparam, func, select, text, tuple_, union_all
from sqlalchemy.orm import Session, joinedload, load_only

from shardtune.api_schemas.studies.study_request import StudySpec
from shardtune.api_schemas.studies.study_state import ACTIVE_STUDY_STATES, OPEN_STUDY_STATES, StudyPurpose, StudyState
from shardtune.api_schemas.training.models import ModelSummary
from shardtune.api_schemas.trials.trial import OPEN_TRIAL_STATES, TrialState
from shardtune.db.tables.studies import StudyRow
from shardtune.db.tables.trials import RejectionRow, RunRow, TrialRow

# FOR NO KEY UPDATE: rows that refer to the study may still be written, such as a heartbeat's.
_LOCKED = (
    select(StudyRow)
    .where(StudyRow.id == bindparam("study_id"))
    .with_for_update(key_share=True, of=StudyRow)
    .execution_options(populate_existing=True)
)


def get(session: Session, study_id: str) -> StudyRow | None:
    """Return a study without locking it."""
    return session.get(StudyRow, study_id)


def lock(session: Session, study_id: str) -> StudyRow:
    """Return a study, locked until the transaction ends, as it is stored now."""
    return session.scalars(_LOCKED, {"study_id": study_id}).one()


_WITH_WORK = union_all(
    select(StudyRow.id).where(StudyRow.state == StudyState.RUNNING),
    # Ended ones of which a trial is to be traced. Their words are those of the index.
    select(StudyRow.id)
    .join(RunRow, RunRow.study_id == StudyRow.id)
    .where(
        text("runs.purpose = 'trace' AND runs.state IN ('waiting', 'running')"),
        StudyRow.state.not_in(OPEN_STUDY_STATES),
        StudyRow.deleted_at.is_(None),
    ),
)
"""SQL statement that selects the studies which have runs for workers."""
_VERSIONS = select(StudyRow.id, StudyRow.version).where(StudyRow.id.in_(_WITH_WORK))
_TRIALS = (
    select(TrialRow.study_id, TrialRow.state, func.count())
    .where(TrialRow.study_id.in_(bindparam("study_ids", expanding=True)))
    .group_by(TrialRow.study_id, TrialRow.state)
)
_REJECTED = (
    select(RejectionRow.study_id, func.count())
    .where(RejectionRow.study_id.in_(bindparam("study_ids", expanding=True)))
    .group_by(RejectionRow.study_id)
)


@dataclass(frozen=True)
class StudyFilter:
    """Filter of studies; a field that is None matches any value."""

    project_id: str | None = None
    states: tuple[StudyState, ...] = ()
    created_from: datetime | None = None
    created_before: datetime | None = None
    deleted: bool = False
    """Whether to return deleted studies instead of existing ones."""


def page(
    session: Session, criteria: StudyFilter, oldest_first: bool, after: tuple[datetime, str] | None, limit: int
) -> Sequence[StudyRow]:
    """Return a page of studies, sorted by creation time, starting behind `after`."""
    time, name = StudyRow.created_at, StudyRow.id
    query = select(StudyRow).order_by(*((time, name) if oldest_first else (time.desc(), name.desc()))).limit(limit)
    query = query.where(StudyRow.deleted_at.is_not(None) if criteria.deleted else StudyRow.deleted_at.is_(None))
    if criteria.project_id is not None:
        query = query.where(StudyRow.project_id == criteria.project_id)
    if criteria.states:
        query = query.where(StudyRow.state.in_(criteria.states))
    if criteria.created_from is not None:
        query = query.where(time >= criteria.created_from)
    if criteria.created_before is not None:
        query = query.where(time < criteria.created_before)
    if after is not None:
        place = tuple_(time, name)
        query = query.where(place > after if oldest_first else place < after)
    return session.scalars(query).all()


def newest_summary_ids(session: Session, project_id: str | None, limit: int) -> Sequence[str]:
    """Return the ids of the newest studies that have a model summary (sizes and FLOPs of the model), of one project,
    or of all projects if it is None."""
    query = select(StudyRow.id).where(StudyRow.deleted_at.is_(None), StudyRow.model_summary.is_not(None))
    if project_id is not None:
        query = query.where(StudyRow.project_id == project_id)
    return session.scalars(query.order_by(StudyRow.created_at.desc(), StudyRow.id.desc()).limit(limit)).all()


@dataclass(frozen=True)
class SummarisedStudy:
    """Study with a model summary."""

    study_id: str
    spec: StudySpec
    summary: ModelSummary
    created_at: datetime


def summarised(session: Session, study_ids: Sequence[str]) -> Sequence[SummarisedStudy]:
    """Read studies whose model was summarised (its sizes and FLOPs counted by a worker), newest first.

    Raises:
        ValidationError: a row that cannot be read.
    """
    query = select(StudyRow.id, StudyRow.spec, StudyRow.model_summary, StudyRow.created_at)
    rows = session.execute(
        query.where(StudyRow.id.in_(study_ids)).order_by(StudyRow.created_at.desc(), StudyRow.id.desc())
    )
    return [
        SummarisedStudy(study_id, spec, summary, created_at)
        for study_id, spec, summary, created_at in rows
        if summary is not None
    ]


@dataclass(frozen=True)
class OpenStudy:
    """Study with work to do, as read when a worker requests a run: a running study, or an ended study that still has
    a run under the profiler to do."""

    study: StudyRow
    """Study row without its large columns."""
    open_states: frozenset[TrialState]
    """States that the study's unfinished runs are in: waiting, running, both or neither."""

    @property
    def is_background(self) -> bool:
        """Whether the service started the study itself, so that no user waits for it and it may use only the day's
        remaining budget."""
        return self.study.purpose != StudyPurpose.USER

    @property
    def has_waiting(self) -> bool:
        """Whether the study has a waiting run that a worker may lease."""
        return TrialState.WAITING in self.open_states


def studies_with_work(session: Session, study_id: str | None = None) -> list[OpenStudy]:
    """Return the studies with work to do and their projects, oldest first, which is the order in which they get
    workers. If a study is given, only this one is read."""
    rows = session.execute(_OPEN) if study_id is None else session.execute(_ONE_OPEN, {"study_id": study_id})
    return [
        OpenStudy(
            row[0], frozenset(state for state, is_there in zip(OPEN_TRIAL_STATES, row[1:], strict=True) if is_there)
        )
        for row in rows
    ]


def _with_small_columns(query: Select[StudyRow]) -> Select[StudyRow]:
    """Make a query for studies load only small columns; large columns are loaded when they are first read."""
    few = (StudyRow.version, StudyRow.phase, StudyRow.cluster, StudyRow.fingerprint_key, StudyRow.project_id)
    query = query.options(load_only(*few, StudyRow.purpose, StudyRow.system_study))
    return query.order_by(StudyRow.created_at, StudyRow.id)


_OPEN = (
    _with_small_columns(select(StudyRow).where(StudyRow.id.in_(_WITH_WORK)))
    .add_columns(
        *(
            select(RunRow.id).where(RunRow.study_id == StudyRow.id, RunRow.state == state).exists()
            for state in OPEN_TRIAL_STATES
        )
    )
    .options(joinedload(StudyRow.project))
)
"""SQL statement for the studies that have work, compiled once because every request for a run uses it."""
_ONE_OPEN = _OPEN.where(StudyRow.id == bindparam("study_id"))


def waiting(session: Session) -> Sequence[StudyRow]:
    """Return the studies that wait for a worker, oldest first."""
    query = select(StudyRow).where(StudyRow.state == StudyState.WAITING)
    return session.scalars(query.order_by(StudyRow.created_at, StudyRow.id)).all()


def needing_workers(session: Session, project_id: str | None) -> Sequence[StudyRow]:
    """Return the studies of a project (None means any project) that are running or wait for a worker, oldest first."""
    query = select(StudyRow).where(StudyRow.state.in_(ACTIVE_STUDY_STATES))
    query = query if project_id is None else query.where(StudyRow.project_id == project_id)
    needed = (StudyRow.cluster, StudyRow.spec, StudyRow.purpose, StudyRow.reason_code)
    few = load_only(StudyRow.state, StudyRow.project_id, StudyRow.created_at, *needed)
    return session.scalars(
        query.options(few, joinedload(StudyRow.project)).order_by(StudyRow.created_at, StudyRow.id)
    ).all()


def running(session: Session) -> Sequence[StudyRow]:
    """Return the running studies, oldest first."""
    return session.scalars(_with_small_columns(select(StudyRow).where(StudyRow.state == StudyState.RUNNING))).all()


def read_specs(session: Session, rows: Sequence[StudyRow]) -> None:
    """Return the requests (specs) of the studies with the given ids, in one query."""
    ids = [row.id for row in rows]
    if ids:
        session.scalars(select(StudyRow).where(StudyRow.id.in_(ids)).options(load_only(StudyRow.spec))).all()


def with_running_runs(session: Session) -> set[str]:
    """Return the ids of the studies that have a run which a worker executes now."""
    return set(session.scalars(select(RunRow.study_id).where(RunRow.state == TrialState.RUNNING).distinct()))


def running_versions(session: Session) -> dict[str, int]:
    """Return the version number of each study with work to do. As long as no version changes, there is no new work."""
    return {row.id: row.version for row in session.connection().execute(_VERSIONS)}


def trial_counts(session: Session, study_ids: Sequence[str]) -> dict[str, dict[str, int]]:
    """Return the number of trials in each state, for each of the given studies that has trials."""
    counts: dict[str, dict[str, int]] = {}
    for study_id, state, count in session.execute(_TRIALS, {"study_ids": list(study_ids)}):
        counts.setdefault(study_id, {})[state.value] = count
    return counts


def rejection_counts(session: Session, study_ids: Sequence[str]) -> dict[str, int]:
    """Return the number of configurations that the memory gate rejected (predicted not to fit), for each of the given
    studies that has any."""
    counts = session.execute(_REJECTED, {"study_ids": list(study_ids)})
    return {study_id: int(count) for study_id, count in counts}
