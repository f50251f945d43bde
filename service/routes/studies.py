"""Studies over HTTP."""

from typing import Annotated, Any

from fastapi import APIRouter, Query

from api_schemas.exports import Export, ExportFormat
from api_schemas.studies import Study, StudyResult, StudySpec, StudyState
from api_schemas.trials import Rejection, Trial
from service import studies
from service.context import InContext
from service.errors import Problem

router = APIRouter(prefix="/v1/studies", tags=["studies"], responses={404: {"model": Problem}})

_CONFLICT: dict[int | str, dict[str, Any]] = {409: {"model": Problem}}


@router.post("", status_code=201)
def create_study(context: InContext, spec: StudySpec) -> Study:
    """Create a study; it starts as soon as a worker asks for work."""
    return studies.create(context, spec)


@router.get("")
def list_studies(
    context: InContext, state: StudyState | None = None, limit: Annotated[int, Query(ge=1, le=500)] = 50
) -> list[Study]:
    """Studies, newest first."""
    return studies.newest(context, state, limit)


@router.get("/{study_id}")
def read_study(context: InContext, study_id: str) -> Study:
    """One study as it stands."""
    return studies.read(context, study_id)


@router.post("/{study_id}:cancel", responses=_CONFLICT)
def cancel_study(context: InContext, study_id: str) -> Study:
    """End a study; its workers stop at their next heartbeat."""
    return studies.cancel(context, study_id)


@router.post("/{study_id}:pause", responses=_CONFLICT)
def pause_study(context: InContext, study_id: str) -> Study:
    """Give out no more runs of a study; those that run may finish."""
    return studies.pause(context, study_id, paused=True)


@router.post("/{study_id}:resume", responses=_CONFLICT)
def resume_study(context: InContext, study_id: str) -> Study:
    """Go on with a paused study."""
    return studies.pause(context, study_id, paused=False)


@router.get("/{study_id}/trials")
def read_trials(context: InContext, study_id: str) -> list[Trial]:
    """The study's trials by number, with their runs and attempts."""
    return studies.read_trials(context, study_id)


@router.get("/{study_id}/rejections")
def read_rejections(context: InContext, study_id: str) -> list[Rejection]:
    """Configurations the memory gate refused, with the reason of each."""
    return studies.read_rejections(context, study_id)


@router.get("/{study_id}/best", responses=_CONFLICT)
def read_best(context: InContext, study_id: str) -> StudyResult:
    """The answer of a complete study; 409 with its state before."""
    return studies.best(context, study_id)


@router.get("/{study_id}/export", responses=_CONFLICT)
def export_study(
    context: InContext,
    study_id: str,
    which: str = "best",
    form: Annotated[ExportFormat, Query(alias="format")] = "standard",
) -> Export:
    """Files of `best`, of `baseline`, or of a trial by its number."""
    return studies.export_as(context, study_id, which, form)
