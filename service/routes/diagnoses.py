"""Routes of diagnoses (where a trial's step time goes) and raw traces."""

from typing import Annotated

from fastapi import APIRouter, Path, Query
from starlette.responses import Response, StreamingResponse

from shardtune.api_schemas.trials.diagnosis_runs import TrialDiagnosis
from shardtune.db.traces import StoredContent
from shardtune.service.access.actions import Action
from shardtune.service.access.auth import requires
from shardtune.service.http.error_codes import problems
from shardtune.service.http.idempotent_requests import IdempotencyDep
from shardtune.service.process.context import Context, ContextDep
from shardtune.service.routes.studies import READ, StudyIdParam
from shardtune.service.studies import diagnoses, trace_download

router = APIRouter(prefix="/v1/studies/{study_id}/trials", tags=["studies"])

GZIP = "application/gzip"
BYTES = {"type": "string", "format": "binary"}
RankParam = Annotated[int, Query(ge=0, lt=2**31, description="Rank that recorded the trace.")]
TrialNumberParam = Annotated[int, Path(ge=0, lt=2**31, description="Number of the trial.")]


@router.get(
    "/{number}/diagnosis", dependencies=READ, responses=problems("unknown_study", "unknown_trial", "unknown_diagnosis")
)
def read_diagnosis(context: ContextDep, study_id: StudyIdParam, number: TrialNumberParam) -> TrialDiagnosis:
    """Read how a trial's step time divides into its parts, as measured by the trial's last run under the profiler.
    While that run has not ended, read its state instead.
    """
    return diagnoses.read_diagnosis(context, study_id, number)


@router.get(
    "/{number}/trace",
    dependencies=READ,
    response_class=Response,
    responses={
        200: {
            "description": "Trace of torch's profiler as compressed JSON; Perfetto opens it",
            "content": {GZIP: {"schema": BYTES}},
        },
        **problems("unknown_study", "unknown_trial", "unknown_diagnosis", "unknown_trace"),
    },
)
def read_raw_trace(
    context: ContextDep, study_id: StudyIdParam, number: TrialNumberParam, rank: RankParam = 0
) -> Response:
    """Download the raw trace of one rank from the trial's last run under the profiler; the field `traces` of the
    trial's diagnosis lists the stored traces.
    """
    trace = diagnoses.raw_trace(context, study_id, number, rank)
    return attached_trace(context, trace, f"{study_id}-{number}")


@router.post(
    "/{number}:diagnose",
    status_code=202,
    dependencies=[requires(Action.DIAGNOSE_TRIAL)],
    responses=problems("unknown_study", "unknown_trial", "study_running", "study_deleted", "trial_untraceable"),
)
def diagnose_trial(
    context: ContextDep, study_id: StudyIdParam, number: TrialNumberParam, once: IdempotencyDep
) -> TrialDiagnosis:
    """Run a trial of an ended study once more under torch's profiler.

    The run takes about as long as a trial, on a worker like those that measured the study; the study and its result
    stay unchanged. While such a run waits or executes, no second one is added.
    """
    return diagnoses.request_diagnosis(context, study_id, number, once)


def attached_trace(context: Context, trace: StoredContent, name: str) -> Response:
    """Response with a trace that a browser saves as a file, under the name of its trial and rank."""
    # Never shown inline: the content comes from a worker.
    headers = {
        "Content-Disposition": f'attachment; filename="{name}-rank-{trace.rank}.json.gz"',
        "Content-Length": str(trace.size),
        "X-Content-Type-Options": "nosniff",
    }
    return StreamingResponse(trace_download.pieces(context, trace), media_type=GZIP, headers=headers)
