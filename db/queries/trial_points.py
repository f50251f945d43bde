"""Query the trials of a study with their figures for its page, read by JSON path without validating stored values."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import JSON, ColumnElement, Float, Select, SQLColumnExpression, and_, func, select, type_coerce
from sqlalchemy.orm import Session

from shardtune.api_schemas.trials.trial import RunPurpose, TrialState
from shardtune.db.listing import Page, cut_to_page
from shardtune.db.tables.trials import AttemptRow, RunRow, TrialRow
from shardtune.db.tables.types import AnyJson

_MEASURED = type_coerce(RunRow.measurement, JSON)
_FAILURE = type_coerce(TrialRow.failure, JSON)
_CONFIG = type_coerce(TrialRow.config, JSON)
_PREDICTED = type_coerce(TrialRow.prediction, JSON)
_REASON = type_coerce(TrialRow.reason, JSON)
_SPEED = _MEASURED["tokens_per_s_per_gpu"].as_float()
_ALLOCATED = _MEASURED[("memory", "peak_allocated_gib")].as_float()
_RESERVED = _MEASURED[("memory", "peak_reserved_gib")].as_float()
_GPU_SECONDS = func.sum(AttemptRow.gpu_seconds)
_MEMORY = func.coalesce(_RESERVED, _ALLOCATED)

_EXPECTED = ("tokens_per_s_per_gpu", "low_tokens_per_s_per_gpu", "high_tokens_per_s_per_gpu")

TRIAL_SORTS: dict[str, SQLColumnExpression[Any]] = {
    "number": TrialRow.number,
    "speed": _SPEED,
    "memory": _MEMORY,
    "step": _MEASURED["step_time_s"].as_float(),
    "cost": _GPU_SECONDS,
    "state": TrialRow.state,
}


@dataclass(frozen=True)
class TrialFilter:
    """Filter of a study's trials; a field that is None matches any value."""

    states: tuple[TrialState, ...] = ()
    backend: str | None = None
    failure: str | None = None


@dataclass(frozen=True)
class TrialPoint:
    """Trial with the figures of its search run; a figure that is None was not measured."""

    number: int
    state: TrialState
    origin: str
    config: dict[str, Any]
    failure_kind: str | None
    failure_message: str | None
    failure_peak_gib: float | None
    """Peak memory in GiB that tensors took before the trial failed; None if it was not measured."""
    tokens_per_s_per_gpu: float | None
    peak_allocated_gib: float | None
    peak_reserved_gib: float | None
    device_used_gib: float | None
    step_time_s: float | None
    predicted_memory_gib: float | None
    predicted_tokens_per_s_per_gpu: float | None
    """Speed in tokens per second and GPU, as predicted before the trial ran."""
    expected_tokens_per_s_per_gpu: float | None
    """Speed in tokens per second and GPU that was expected before the trial ran, with the ends of its 90 % interval.
    The search that chose the trial expected it, or else the predictor."""
    low_tokens_per_s_per_gpu: float | None
    high_tokens_per_s_per_gpu: float | None
    disturbed: str | None
    """Description of how the search run was disturbed, if the run counts nevertheless."""
    gpu_seconds: float | None
    finished_at: datetime | None

    @property
    def measured_peak_gib(self) -> float | None:
        """Peak memory in GiB that is compared with the memory limit: reserved memory on a GPU, allocated memory on
        CPU ranks."""
        return self.peak_allocated_gib if self.peak_reserved_gib is None else self.peak_reserved_gib


def of_study(session: Session, study_id: str, criteria: TrialFilter, page: Page) -> list[TrialPoint]:
    """Return the trials of a study with their figures, sorted by one figure; trials without this figure come last."""
    query = cut_to_page(_points(study_id, criteria), TRIAL_SORTS[page.sort], TrialRow.number, page)
    return [TrialPoint(*row) for row in session.execute(query)]


def count_trials(session: Session, study_id: str, criteria: TrialFilter) -> int:
    """Return the number of trials of a study that match a filter."""
    return session.scalar(select(func.count()).where(*_conditions(study_id, criteria)).select_from(TrialRow)) or 0


def failure_counts(session: Session, study_id: str) -> list[tuple[str, str, int]]:
    """Return the state, the kind of failure and the number of the trials of a study that have no usable measurement,
    most frequent first."""
    kind = _FAILURE["kind"].as_string()
    query = (
        select(TrialRow.state, kind, func.count())
        .where(TrialRow.study_id == study_id, TrialRow.failure.is_not(None))
        .group_by(TrialRow.state, kind)
        .order_by(func.count().desc())
    )
    return [(state.value, str(word), int(count)) for state, word, count in session.execute(query)]


def count_disturbed_validation_runs(session: Session, study_id: str) -> int:
    """Return the number of a study's complete validation runs that were kept although disturbed."""
    query = select(func.count()).select_from(RunRow)
    is_kept = (RunRow.purpose == RunPurpose.VALIDATION, RunRow.state == TrialState.COMPLETE)
    is_disturbed = _MEASURED["disturbed"].as_string().is_not(None)
    return session.scalar(query.where(RunRow.study_id == study_id, *is_kept, is_disturbed)) or 0


def _points(study_id: str, criteria: TrialFilter) -> Select[Any]:
    return (
        select(
            TrialRow.number,
            TrialRow.state,
            TrialRow.origin,
            type_coerce(TrialRow.config, AnyJson),
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
            *(func.coalesce(_REASON[name].as_float(), _PREDICTED[name].as_float()) for name in _EXPECTED),
            _MEASURED["disturbed"].as_string(),
            type_coerce(_GPU_SECONDS, Float),
            TrialRow.finished_at,
        )
        .outerjoin(RunRow, and_(RunRow.trial_id == TrialRow.id, RunRow.purpose == RunPurpose.SEARCH))
        .outerjoin(AttemptRow, AttemptRow.run_id == RunRow.id)
        .where(*_conditions(study_id, criteria))
        .group_by(TrialRow.id, RunRow.id)
    )


def _conditions(study_id: str, criteria: TrialFilter) -> list[ColumnElement[bool]]:
    where: list[ColumnElement[bool]] = [TrialRow.study_id == study_id]
    if criteria.states:
        where.append(TrialRow.state.in_(criteria.states))
    if criteria.backend:
        where.append(_CONFIG[("strategy", "kind")].as_string() == criteria.backend)
    if criteria.failure:
        where.append(_FAILURE["kind"].as_string() == criteria.failure)
    return where
