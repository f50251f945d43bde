"""Traces of the user's own code: found in earlier studies of the same code, since the service runs no code itself."""

import contextlib
from collections.abc import Sequence

from pydantic import ValidationError
from sqlalchemy.orm import Session

from shardtune.api_schemas.studies.study_request import StudySpec
from shardtune.api_schemas.training.models import ModelSpec
from shardtune.api_schemas.trials.predictions import PredictionRequest
from shardtune.db.queries import studies
from shardtune.db.queries.studies import SummarisedStudy

_NEWEST = 50
"""Maximum number of studies that are searched for a trace of the user's code, newest first. Reading a study loads its
model summary of some kilobytes.
"""


def with_trace(session: Session, project_id: str | None, request: PredictionRequest) -> PredictionRequest:
    """Add to a prediction request the model summary (sizes and FLOPs of the model) of the newest study of the same
    user-written model code. With `project_id` None, the studies of all projects are searched.

    A study counts only if its sequence length and dtypes equal those that the request names. If no study counts, the
    request is returned unchanged.
    """
    if not request.model.is_own or request.model_summary is not None:
        return request
    of_code = [
        study
        for study in _read(session, studies.newest_summary_ids(session, project_id, _NEWEST))
        if _code(study.spec.model) == _code(request.model) and _suits(study.spec, request)
    ]
    if not of_code:
        return request
    # A failure only where no study has a trace: its reason may have been a busy machine.
    chosen = next((study for study in of_code if study.summary.step_trace is not None), of_code[0])
    summary = chosen.summary
    if summary.step_trace is not None:
        summary = summary.model_copy(update={"note": _origin(chosen)})
    return request.model_copy(update={"model_summary": summary})


def _read(session: Session, study_ids: Sequence[str]) -> Sequence[SummarisedStudy]:
    try:
        return studies.summarised(session, study_ids)
    except ValidationError:
        # A row of another version: it alone is left out.
        readable: list[SummarisedStudy] = []
        for study_id in study_ids:
            with contextlib.suppress(ValidationError):
                readable += studies.summarised(session, [study_id])
        return readable


def _origin(study: SummarisedStudy) -> str:
    """Sentence that says which study traced the user's code and when, since the code may have changed afterwards."""
    return (
        f"your own code was traced in study {study.study_id} of {study.created_at:%Y-%m-%d %H:%M} UTC; "
        "if the code has changed since, a new study traces it again"
    )


def _code(model: ModelSpec) -> tuple[object, ...]:
    """Parts of a model's description that determine which model the user's own code builds; the display name is not
    among them.
    """
    return model.entry_point, model.script, model.config


def _suits(spec: StudySpec, request: PredictionRequest) -> bool:
    workload, precision = spec.workload, request.precision
    if request.sequence_length not in (None, workload.sequence_length):
        return False
    if precision is None or isinstance(precision, str):
        return True
    traced = workload.precision
    return (precision.compute_dtype, precision.autocast) == (traced.compute_dtype, traced.autocast)
