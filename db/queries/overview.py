"""Queries for the web pages about studies and workers, with paging, sorting and filtering in SQL. Trials are in
db.queries.trial_points."""

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import JSON, ColumnElement, SQLColumnExpression, and_, case, func, or_, select, type_coerce
from sqlalchemy.orm import Session, joinedload

from shardtune.api_schemas.machines.fingerprints import Freshness
from shardtune.api_schemas.recommendations.best import RecommendationState
from shardtune.api_schemas.studies.study_state import StudyState
from shardtune.api_schemas.trials.measurements import Measurement
from shardtune.api_schemas.trials.trial import (
    OPEN_TRIAL_STATES,
    SEED_ORIGINS,
    AttemptEnd,
    RunPurpose,
    TrialOrigin,
    TrialState,
)
from shardtune.db.listing import Page, cut_to_page, page_with_total
from shardtune.db.tables.best import RecommendationRow, TuningTargetRow
from shardtune.db.tables.studies import StudyRow
from shardtune.db.tables.trials import AttemptRow, RunRow, TrialRow

_SPEC = type_coerce(StudyRow.spec, JSON)
_RESULT = type_coerce(StudyRow.result, JSON)

_MODEL = _SPEC[("model", "name")].as_string()
_DEVICE = type_coerce(StudyRow.cluster, JSON)["gpu"].as_string()

ComparedValues = tuple[int, TrialOrigin, int, TrialState, str | None, Measurement | None]

BEST_SORTS: dict[str, SQLColumnExpression[Any]] = {
    "age": StudyRow.finished_at,
    "speed": _RESULT[("best", "tokens_per_s_per_gpu")].as_float(),
    "speedup": _RESULT[("speedup", "value")].as_float(),
    "mfu": _RESULT[("best", "mfu")].as_float(),
    "model": _MODEL,
}


def best_ids(
    session: Session, project_id: str | None, text: str, device: str | None, page: Page
) -> tuple[list[str], int]:
    """Return the ids of studies, one for each combination of model, workload and cluster that matches the search, and
    the total number of combinations. The study is that of the recommended configuration: preferably one not
    superseded on another fingerprint (hardware and software versions), then fresh before stale, then the most recent.
    Without a recommendation, it is the newest study with a result. `project_id` None means all projects."""
    alike = (
        _SPEC[("model", "config")].as_string(),
        _SPEC["workload"].as_string(),
        type_coerce(StudyRow.cluster, JSON)["gpu"].as_string(),
        type_coerce(StudyRow.cluster, JSON)["nodes"].as_integer(),
        type_coerce(StudyRow.cluster, JSON)["gpus_per_node"].as_integer(),
    )
    # A study that is being extended has no end for now.
    ended = func.coalesce(StudyRow.finished_at, StudyRow.created_at)
    position = func.row_number().over(
        partition_by=alike,
        order_by=(
            TuningTargetRow.recommended_id.is_(None),
            TuningTargetRow.superseded_by.is_not(None),
            TuningTargetRow.freshness != Freshness.FRESH,
            TuningTargetRow.updated_at.desc(),
            ended.desc(),
            StudyRow.id,
        ),
    )
    ranked = (
        select(StudyRow.id, position.label("position"))
        .select_from(StudyRow)
        .where(StudyRow.result.is_not(None), *_of_project(project_id))
    )
    is_recommended = and_(
        RecommendationRow.study_id == StudyRow.id, RecommendationRow.state == RecommendationState.RECOMMENDED
    )
    ranked = ranked.outerjoin(RecommendationRow, is_recommended)
    shown = ranked.outerjoin(TuningTargetRow, TuningTargetRow.recommended_id == RecommendationRow.id).subquery()
    query = select(StudyRow.id).join(shown, shown.c.id == StudyRow.id).where(shown.c.position == 1)
    query = query.where(*_matching(text, device))
    return page_with_total(session, query, BEST_SORTS[page.sort], StudyRow.id, page)


def studies(
    session: Session, project_id: str | None, text: str, states: Sequence[StudyState], page: Page
) -> tuple[list[StudyRow], int]:
    """Return the studies that match a filter, newest first, and their total number."""
    query = select(StudyRow).where(*_matching(text, None), *_of_project(project_id))
    if states:
        query = query.where(StudyRow.state.in_(states))
    # Asked apart: the database would carry whole studies of all pages through a count.
    total = session.scalar(select(func.count()).select_from(query.with_only_columns(StudyRow.id).subquery())) or 0
    query = query.options(joinedload(StudyRow.fingerprint))
    return list(session.scalars(cut_to_page(query, StudyRow.created_at, StudyRow.id, page))), total


def by_ids(session: Session, ids: Sequence[str]) -> list[StudyRow]:
    """Return studies in the order of the given ids."""
    query = select(StudyRow).where(StudyRow.id.in_(ids)).options(joinedload(StudyRow.fingerprint))
    rows = {row.id: row for row in session.scalars(query)}
    return [rows[name] for name in ids if name in rows]


def has_studies(session: Session, project_id: str | None) -> bool:
    """Whether a study was ever created in this database."""
    return session.scalar(select(StudyRow.id).where(*_of_project(project_id)).limit(1)) is not None


def count_running(session: Session, project_id: str) -> int:
    """Return the number of a project's running studies."""
    query = select(func.count()).select_from(StudyRow)
    return session.scalars(query.where(StudyRow.project_id == project_id, StudyRow.state == StudyState.RUNNING)).one()


def devices(session: Session, project_id: str | None) -> list[str]:
    """Return the names of the accelerators on which studies of one project (None means all projects) ran."""
    return sorted(name for name in session.scalars(select(_DEVICE).where(*_of_project(project_id)).distinct()) if name)


@dataclass(frozen=True)
class RunCosts:
    """Number and GPU-seconds of the complete runs of a study that have the same purpose and belong to the same final
    comparison (paired runs that decide), or to none."""

    runs: int
    shortest: float
    """GPU-seconds of the cheapest attempt that gave one of the runs its result."""
    mean: float
    """Mean GPU-seconds of one run, including its repeated attempts."""
    mean_chosen: float | None
    """Mean GPU-seconds of the attempts that gave runs of trials their result, without those of seed trials (the user's
    baseline and documented defaults); None without such a run."""
    repeats: float
    """Mean number of attempts of one run that were disturbed."""


def run_costs(
    session: Session, study_ids: Sequence[str], left_out_block: int
) -> dict[str, dict[tuple[RunPurpose, int], RunCosts]]:
    """Return the costs of each study's runs by purpose and by the number of the final comparison (paired runs that
    decide) they belong to; number 0 means the search. Runs of the comparison block `left_out_block` are left out."""
    spent = AttemptRow.gpu_seconds
    runs = func.count(RunRow.id.distinct())
    is_last = AttemptRow.attempt == RunRow.attempt
    is_chosen = TrialRow.origin.not_in(SEED_ORIGINS)
    figures = (
        runs,
        func.min(case((is_last, spent))),
        func.sum(spent) / runs,
        func.avg(case((and_(is_last, is_chosen), spent))),
        func.count(case((AttemptRow.end == AttemptEnd.DISTURBED, AttemptRow.id))),
    )
    query = (
        select(RunRow.study_id, RunRow.purpose, RunRow.comparison_round, *figures)
        .join(AttemptRow, AttemptRow.run_id == RunRow.id)
        .outerjoin(TrialRow, TrialRow.id == RunRow.trial_id)
        .where(RunRow.study_id.in_(study_ids), RunRow.state == TrialState.COMPLETE)
        .where(RunRow.comparison_block.is_distinct_from(left_out_block))
        .group_by(RunRow.study_id, RunRow.purpose, RunRow.comparison_round)
    )
    costs: dict[str, dict[tuple[RunPurpose, int], RunCosts]] = {study_id: {} for study_id in study_ids}
    for study_id, purpose, number, count, shortest, mean, chosen, disturbed in (
        session.execute(query) if study_ids else ()
    ):
        costs[study_id][purpose, number] = RunCosts(count, shortest or 0.0, mean or 0.0, chosen, disturbed / count)
    return costs


def open_runs(session: Session, study_ids: Sequence[str]) -> dict[str, set[tuple[RunPurpose, int | None]]]:
    """Return purpose and comparison block (None outside of final comparisons) of each study's waiting and running runs."""
    query = select(RunRow.study_id, RunRow.purpose, RunRow.comparison_block)
    query = query.where(RunRow.study_id.in_(study_ids), RunRow.state.in_(OPEN_TRIAL_STATES))
    runs: dict[str, set[tuple[RunPurpose, int | None]]] = {study_id: set() for study_id in study_ids}
    for study_id, purpose, block in session.execute(query) if study_ids else ():
        runs[study_id].add((purpose, block))
    return runs


def compared_runs(session: Session, study_ids: Sequence[str], left_out_block: int) -> dict[str, list[ComparedValues]]:
    """Return the runs in comparison blocks of each study's current final comparison: number and origin of the trial,
    block, state, worker of the last attempt, and measurement. Runs of the block `left_out_block` are left out."""
    columns = (TrialRow.number, TrialRow.origin, RunRow.comparison_block, RunRow.state, AttemptRow.worker_id)
    query = (
        select(RunRow.study_id, *columns, RunRow.measurement)
        .join(TrialRow, TrialRow.id == RunRow.trial_id)
        .join(StudyRow, StudyRow.id == RunRow.study_id)
        .outerjoin(AttemptRow, and_(AttemptRow.run_id == RunRow.id, AttemptRow.attempt == RunRow.attempt))
        .where(RunRow.study_id.in_(study_ids), RunRow.purpose == RunPurpose.VALIDATION)
        .where(RunRow.comparison_round == StudyRow.comparison_round, RunRow.comparison_block != left_out_block)
        .order_by(RunRow.position)
    )
    runs: dict[str, list[ComparedValues]] = {study_id: [] for study_id in study_ids}
    for study_id, number, origin, block, state, worker, measurement in session.execute(query) if study_ids else ():
        if block is not None:
            runs[study_id].append((number, origin, block, state, worker, measurement))
    return runs


def running_on_workers(session: Session) -> dict[str, tuple[RunRow, str]]:
    """Return the run that each worker executes, and the project of the run's study, by worker id."""
    query = select(RunRow, StudyRow.project_id).join(StudyRow, StudyRow.id == RunRow.study_id)
    query = query.where(RunRow.state == TrialState.RUNNING).options(joinedload(RunRow.trial))
    return {run.worker_id: (run, project) for run, project in session.execute(query) if run.worker_id is not None}


def last_attempt(session: Session, worker_id: str, project_id: str | None) -> AttemptRow | None:
    """Return a worker's newest ended attempt at a run of a project (None means any project), with its run and trial."""
    query = select(AttemptRow).where(AttemptRow.worker_id == worker_id, AttemptRow.end.is_not(None))
    if project_id is not None:
        runs = query.join(RunRow, RunRow.id == AttemptRow.run_id).join(StudyRow, StudyRow.id == RunRow.study_id)
        query = runs.where(StudyRow.project_id == project_id)
    query = query.order_by(AttemptRow.id.desc()).limit(1)
    return session.scalars(query.options(joinedload(AttemptRow.run).joinedload(RunRow.trial))).one_or_none()


def model_names(session: Session, study_ids: Collection[str]) -> dict[str, str]:
    """Return the model name of each given study."""
    query = select(StudyRow.id, _MODEL).where(StudyRow.id.in_(study_ids))
    return dict(session.execute(query).all()) if study_ids else {}


def pulse(session: Session, study_id: str) -> tuple[str, bool] | None:
    """Return a text that changes whenever anything in the study changes, and whether the study has ended."""
    study = session.execute(select(StudyRow.version, StudyRow.state).where(StudyRow.id == study_id)).one_or_none()
    if study is None:
        return None
    query = select(RunRow.id, RunRow.attempt, RunRow.progress)
    runs = session.execute(query.where(RunRow.study_id == study_id, RunRow.state == TrialState.RUNNING)).all()
    moves = [f"{run}.{attempt}.{progress.canonical_json() if progress else ''}" for run, attempt, progress in runs]
    digest = hashlib.sha256("|".join(sorted(moves)).encode()).hexdigest()[:16]
    return f"{study.version}-{study.state.value}-{digest}", not study.state.is_open


def _of_project(project_id: str | None) -> list[ColumnElement[bool]]:
    """Return the SQL conditions for the existing (not deleted) studies of one project (None means all projects)."""
    kept: list[ColumnElement[bool]] = [StudyRow.deleted_at.is_(None)]
    return kept if project_id is None else [*kept, StudyRow.project_id == project_id]


def _matching(text: str, device: str | None) -> list[ColumnElement[bool]]:
    """Return the SQL conditions of a text search: every word must occur in the model's name, the accelerator's name,
    the study's id or the description of its result."""
    described = _RESULT[("best", "description")].as_string()
    where: list[ColumnElement[bool]] = [
        or_(*(column.icontains(word, autoescape=True) for column in (_MODEL, _DEVICE, StudyRow.id, described)))
        for word in text.split()[:8]
    ]
    return [*where, device == _DEVICE] if device else where
