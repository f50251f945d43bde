"""Where the steps of trials went, over HTTP."""

from typing import Annotated

from fastapi import APIRouter, Path, Query
from starlette.responses import Response

from shardtune.api_schemas.trials.diagnosis_runs import TrialDiagnosis
from shardtune.service.access.actions import Action
from shardtune.service.access.auth import requires
from shardtune.service.http.error_codes import problems
from shardtune.service.http.idempotent_requests import InOnce
from shardtune.service.process.context import InContext
from shardtune.service.routes.studies import READ, InStudyId
from shardtune.service.studies import diagnoses

router = APIRouter(prefix="/v1/studies/{study_id}/trials", tags=["studies"])

GZIP = "application/gzip"
BYTES = {"type": "string", "format": "binary"}
InRank = Annotated[int, Query(ge=0, lt=2**31, description="That recorded it.")]
InNumber = Annotated[int, Path(ge=0, lt=2**31, description="A trial's number.")]


@router.get(
    "/{number}/diagnosis", dependencies=READ, responses=problems("unknown_study", "unknown_trial", "unknown_diagnosis")
)
def read_diagnosis(context: InContext, study_id: InStudyId, number: InNumber) -> TrialDiagnosis:
    """Where the steps of a trial went, by its last run under the profiler; or what became of that run."""
    return diagnoses.read(context, study_id, number)


@router.get(
    "/{number}/trace",
    dependencies=READ,
    response_class=Response,
    responses={
        200: {
            "description": "JSON of torch's profiler, compressed; Perfetto opens it",
            "content": {GZIP: {"schema": BYTES}},
        },
        **problems("unknown_study", "unknown_trial", "unknown_diagnosis", "unknown_trace"),
    },
)
def read_raw_trace(context: InContext, study_id: InStudyId, number: InNumber, rank: InRank = 0) -> Response:
    """What one rank recorded in the last run of a trial under the profiler, as `traces` of the diagnosis lists it."""
    return attached_trace(diagnoses.raw_trace(context, study_id, number, rank), study_id, number, rank)


@router.post(
    "/{number}:diagnose",
    status_code=202,
    dependencies=[requires(Action.DIAGNOSE_TRIAL)],
    responses=problems("unknown_study", "unknown_trial", "study_running", "study_deleted", "trial_untraceable"),
)
def diagnose_trial(context: InContext, study_id: InStudyId, number: InNumber, once: InOnce) -> TrialDiagnosis:
    """Run a trial of an ended study once more, some steps of it under torch's profiler. It takes about as long as a trial, on
    a worker like those that measured the study; the study and its answer stay as they are. While one waits or runs, asking
    again is no second one."""
    return diagnoses.ask(context, study_id, number, once)


def attached_trace(content: bytes, study_id: str, number: int, rank: int) -> Response:
    """A file to be saved; a browser shows nothing of it."""
    name = f"{study_id}-{number}-rank-{rank}.json.gz"
    headers = {"Content-Disposition": f'attachment; filename="{name}"', "X-Content-Type-Options": "nosniff"}
    return Response(content, media_type=GZIP, headers=headers)
