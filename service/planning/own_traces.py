"""Traces of the user's own code: found in earlier studies of the same code, since the service runs no code itself."""

from pydantic import ValidationError
from sqlalchemy.orm import Session

from shardtune.api_schemas.studies.study import StudySpec
from shardtune.api_schemas.training.models import ModelSpec
from shardtune.api_schemas.trials.predictions import PredictionRequest
from shardtune.db.queries import studies

_NEWEST = 50
"""Number of the newest studies that are searched; each brings a model summary of some kilobytes."""


def with_trace(session: Session, project_id: str | None, request: PredictionRequest) -> PredictionRequest:
    """Prediction request with the model summary of a project's newest study of the same own code (None: of any
    project).

    Sequence length and dtypes must be those of the request, where it names them. Without such a study, the request is
    unchanged.
    """
    if not request.model.is_own or request.model_summary is not None:
        return request
    try:
        rows = studies.newest_summaries(session, project_id, _NEWEST)
    except ValidationError:
        # A row of another version: it must not keep others from their predictions.
        return request
    for spec, summary in rows:
        if _code(spec.model) == _code(request.model) and _suits(spec, request):
            return request.model_copy(update={"model_summary": summary})
    return request


def _code(model: ModelSpec) -> tuple[object, ...]:
    """Fields that decide which model the user's code builds; the display name does not."""
    return model.entry_point, model.script, model.config


def _suits(spec: StudySpec, request: PredictionRequest) -> bool:
    workload, precision = spec.workload, request.precision
    if request.sequence_length not in (None, workload.sequence_length):
        return False
    if precision is None or isinstance(precision, str):
        return True
    traced = workload.precision
    return (precision.compute_dtype, precision.autocast) == (traced.compute_dtype, traced.autocast)
