"""Queries behind the pages: paged, sorted and filtered in SQL, and never more columns than are shown.

Figures inside stored values are read by JSON path, so that a list of 100,000 trials validates none of them.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import JSON, ColumnElement, Float, Select, SQLColumnExpression, and_, func, or_, select, type_coerce
from sqlalchemy.orm import Session, joinedload

from api_schemas.studies import StudyState
from api_schemas.trials import TrialState
from db.rows import AttemptRow, FingerprintRow, RunRow, StudyRow, TrialRow, WorkerRow

_SPEC = type_coerce(StudyRow.spec, JSON)
_RESULT = type_coerce(StudyRow.result, JSON)
_MEASURED = type_coerce(RunRow.measurement, JSON)
_FAILURE = type_coerce(TrialRow.failure, JSON)
_PREDICTED = type_coerce(TrialRow.prediction, JSON)
_CONFIG = type_coerce(TrialRow.config, JSON)

_MODEL = _SPEC[("model", "name")].as_string()
_DEVICE = type_coerce(StudyRow.cluster, JSON)["gpu"].as_string()
_SPEED = _MEASURED["tokens_per_s_per_gpu"].as_float()
_ALLOCATED = _MEASURED[("memory", "peak_allocated_gib")].as_float()
_RESERVED = _MEASURED[("memory", "peak_reserved_gib")].as_float()
_GPU_SECONDS = func.sum(AttemptRow.gpu_seconds)
_MEMORY = func.coalesce(_RESERVED, _ALLOCATED)

TRIAL_SORTS: dict[str, SQLColumnExpression[Any]] = {
    "number": TrialRow.number,
    "speed": _SPEED,
    "memory": _MEMORY,
    "step": _MEASURED["step_time_s"].as_float(),
    "cost": _GPU_SECONDS,
    "state": TrialRow.state,
}
BEST_SORTS: dict[str, SQLColumnExpression[Any]] = {
    "age": StudyRow.finished_at,
    "speed": _RESULT[("best", "tokens_per_s_per_gpu")].as_float(),
    "speedup": _RESULT[("speedup", "value")].as_float(),
    "mfu": _RESULT[("best", "mfu")].as_float(),
    "model": _MODEL,
}


@dataclass(frozen=True)
class Page:
    """Which part of a list."""

    sort: str
    descending: bool = False
    limit: int = 50
    offset: int = 0


@dataclass(frozen=True)
class TrialFilter:
    """Which trials of a study; None: all."""

    states: tuple[TrialState, ...] = ()
    backend: str | None = None
    failure: str | None = None


@dataclass(frozen=True)
class TrialPoint:
    """One trial with the figures of its search run; None where nothing was measured."""

    number: int
    state: TrialState
    origin: str
    config: dict[str, Any]
    failure_kind: str | None
    failure_message: str | None
    failure_peak_gib: float | None
    """Of tensors before the failure, where it was measured."""
    tokens_per_s_per_gpu: float | None
    peak_allocated_gib: float | None
    peak_reserved_gib: float | None
    device_used_gib: float | None
    step_time_s: float | None
    predicted_memory_gib: float | None
    predicted_tokens_per_s_per_gpu: float | None
    """Of the prediction made before it ran."""
    gpu_seconds: float | None
    finished_at: datetime | None


def best_ids(session: Session, text: str, device: str | None, page: Page) -> tuple[list[str], int]:
    """The newest answered study of each model, workload and cluster that matches, and how many there are."""
    subject = (
        _SPEC[("model", "config")].as_string(),
        _SPEC["workload"].as_string(),
        type_coerce(StudyRow.cluster, JSON)["gpu"].as_string(),
        type_coerce(StudyRow.cluster, JSON)["nodes"].as_integer(),
        type_coerce(StudyRow.cluster, JSON)["gpus_per_node"].as_integer(),
    )
    position = func.row_number().over(partition_by=subject, order_by=(StudyRow.finished_at.desc(), StudyRow.id))
    ranked = select(StudyRow.id, position.label("position")).where(StudyRow.result.is_not(None)).subquery()
    query = select(StudyRow.id).join(ranked, ranked.c.id == StudyRow.id).where(ranked.c.position == 1)
    query = query.where(*_matching(text, device))
    total = session.scalar(select(func.count()).select_from(query.subquery())) or 0
    return list(session.scalars(_paged(query, BEST_SORTS[page.sort], StudyRow.id, page))), total


def studies(
    session: Session, text: str, device: str | None, states: Sequence[StudyState], page: Page
) -> tuple[list[StudyRow], int]:
    """Studies that match, newest first, and how many there are."""
    query = select(StudyRow).where(*_matching(text, device))
    if states:
        query = query.where(StudyRow.state.in_(states))
    total = session.scalar(select(func.count()).select_from(query.with_only_columns(StudyRow.id).subquery())) or 0
    query = query.options(joinedload(StudyRow.fingerprint))
    return list(session.scalars(_paged(query, StudyRow.created_at, StudyRow.id, page))), total


def by_ids(session: Session, ids: Sequence[str]) -> list[StudyRow]:
    """Studies in the order of their ids."""
    query = select(StudyRow).where(StudyRow.id.in_(ids)).options(joinedload(StudyRow.fingerprint))
    found = {row.id: row for row in session.scalars(query)}
    return [found[name] for name in ids if name in found]


def has_studies(session: Session) -> bool:
    """Whether any study was ever created."""
    return session.scalar(select(StudyRow.id).limit(1)) is not None


def devices(session: Session) -> list[str]:
    """Every accelerator that a study ran on."""
    return sorted(name for name in session.scalars(select(_DEVICE).distinct()) if name)


def trial_points(session: Session, study_id: str, chosen: TrialFilter, page: Page) -> list[TrialPoint]:
    """Trials of a study with their figures; those without the figure that sorts come last."""
    query = _paged(_points(study_id, chosen), TRIAL_SORTS[page.sort], TrialRow.number, page)
    return [TrialPoint(*row) for row in session.execute(query)]


def count_trials(session: Session, study_id: str, chosen: TrialFilter) -> int:
    """How many trials match."""
    return session.scalar(select(func.count()).where(*_chosen(study_id, chosen)).select_from(TrialRow)) or 0


def failure_counts(session: Session, study_id: str) -> list[tuple[str, str, int]]:
    """State, kind and number of the trials that gave no usable measurement, the most frequent first."""
    kind = _FAILURE["kind"].as_string()
    query = (
        select(TrialRow.state, kind, func.count())
        .where(TrialRow.study_id == study_id, TrialRow.failure.is_not(None))
        .group_by(TrialRow.state, kind)
        .order_by(func.count().desc())
    )
    return [(state.value, str(word), int(count)) for state, word, count in session.execute(query)]


def confirmed_runs(session: Session, study_id: str, match_round: int) -> int:
    """Finished confirmation runs of a round."""
    query = select(func.count()).where(
        RunRow.study_id == study_id,
        RunRow.purpose == "confirm",
        RunRow.match_round == match_round,
        RunRow.state == TrialState.COMPLETE,
    )
    return session.scalar(query) or 0


def fingerprints_of_workers(session: Session) -> dict[str, list[tuple[datetime, FingerprintRow]]]:
    """By worker name: the fingerprints its runs were measured under, with the first use of each, oldest first."""
    first = func.min(RunRow.started_at)
    query = (
        select(WorkerRow.name, first, FingerprintRow)
        .join(RunRow, RunRow.worker_id == WorkerRow.id)
        .join(FingerprintRow, FingerprintRow.key == RunRow.fingerprint_key)
        .where(RunRow.started_at.is_not(None))
        .group_by(WorkerRow.name, FingerprintRow.key)
        .order_by(first)
    )
    found: dict[str, list[tuple[datetime, FingerprintRow]]] = {}
    for name, moment, fingerprint in session.execute(query):
        assert moment is not None, "filtered above"
        found.setdefault(name, []).append((moment, fingerprint))
    return found


def running_on_workers(session: Session) -> dict[str, RunRow]:
    """By worker id: the run it executes."""
    query = select(RunRow).where(RunRow.state == TrialState.RUNNING).options(joinedload(RunRow.trial))
    return {run.worker_id: run for run in session.scalars(query) if run.worker_id is not None}


def pulse(session: Session, study_id: str) -> tuple[str, bool] | None:
    """A text that differs whenever something of the study has changed, and whether it has ended."""
    study = session.execute(select(StudyRow.version, StudyRow.state).where(StudyRow.id == study_id)).one_or_none()
    if study is None:
        return None
    query = select(RunRow.id, RunRow.attempt, RunRow.progress)
    runs = session.execute(query.where(RunRow.study_id == study_id, RunRow.state == TrialState.RUNNING)).all()
    moves = [f"{run}.{attempt}.{progress.canonical_json() if progress else ''}" for run, attempt, progress in runs]
    digest = hashlib.sha256("|".join(sorted(moves)).encode()).hexdigest()[:16]
    return f"{study.version}-{study.state.value}-{digest}", study.state not in (StudyState.RUNNING, StudyState.PAUSED)


def _matching(text: str, device: str | None) -> list[ColumnElement[bool]]:
    """Every word occurs in the model's name, the accelerator's, the study's id or the answer in words."""
    described = _RESULT[("best", "description")].as_string()
    where: list[ColumnElement[bool]] = [
        or_(*(column.icontains(word, autoescape=True) for column in (_MODEL, _DEVICE, StudyRow.id, described)))
        for word in text.split()[:8]
    ]
    return [*where, device == _DEVICE] if device else where


def _points(study_id: str, chosen: TrialFilter) -> Select[Any]:
    return (
        select(
            TrialRow.number,
            TrialRow.state,
            TrialRow.origin,
            _CONFIG,
            _FAILURE["kind"].as_string(),
            _FAILURE["message"].as_string(),
            _FAILURE["peak_allocated_gib"].as_float(),
            _SPEED,
            _ALLOCATED,
            _RESERVED,
            _MEASURED[("memory", "device_used_gib")].as_float(),
            _MEASURED["step_time_s"].as_float(),
            _PREDICTED["memory_gib"].as_float(),
            _PREDICTED["tokens_per_s_per_gpu"].as_float(),
            type_coerce(_GPU_SECONDS, Float),
            TrialRow.finished_at,
        )
        .outerjoin(RunRow, and_(RunRow.trial_id == TrialRow.id, RunRow.purpose == "search"))
        .outerjoin(AttemptRow, AttemptRow.run_id == RunRow.id)
        .where(*_chosen(study_id, chosen))
        .group_by(TrialRow.id, RunRow.id)
    )


def _chosen(study_id: str, chosen: TrialFilter) -> list[ColumnElement[bool]]:
    where: list[ColumnElement[bool]] = [TrialRow.study_id == study_id]
    if chosen.states:
        where.append(TrialRow.state.in_(chosen.states))
    if chosen.backend:
        where.append(_CONFIG[("strategy", "kind")].as_string() == chosen.backend)
    if chosen.failure:
        where.append(_FAILURE["kind"].as_string() == chosen.failure)
    return where


def _paged(query: Select[Any], key: SQLColumnExpression[Any], tie: Any, page: Page) -> Select[Any]:
    direction = key.desc() if page.descending else key.asc()
    return query.order_by(direction.nulls_last(), tie).limit(page.limit).offset(page.offset)
