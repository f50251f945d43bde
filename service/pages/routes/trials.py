"""Pages `/studies/…/trials/N`: one trial, and its diagnosis."""

from typing import Annotated

from fastapi import APIRouter, Path, Request
from starlette.responses import Response

from shardtune.service.access.actions import Action
from shardtune.service.http.errors import NotFound
from shardtune.service.pages.page_access import requires
from shardtune.service.pages.rendering import CsrfChecked, render, see_other
from shardtune.service.pages.views.diagnosis.page import why_page
from shardtune.service.pages.views.trial import trial_page
from shardtune.service.process.context import ContextDep
from shardtune.service.routes.diagnoses import TrialNumberParam, attached_trace
from shardtune.service.studies import diagnoses
from shardtune.service.studies.create_and_read import get_study

TracedRankParam = Annotated[int, Path(ge=0, lt=2**31, description="Rank that recorded the trace.")]

router = APIRouter(prefix="/studies/{study_id}/trials")


@router.get("/{number}")
def show_trial(request: Request, context: ContextDep, study_id: str, number: TrialNumberParam) -> Response:
    """Show a trial of a study."""
    with context.db.read() as session:
        shown = trial_page(session, get_study(context, session, study_id), number)
    if shown is None:
        raise NotFound("unknown_trial", f"There is no trial {number} in study {study_id}.")
    return render(request, "trial.html", p=shown)


@router.get("/{number}/why")
def show_why(request: Request, context: ContextDep, study_id: str, number: TrialNumberParam) -> Response:
    """Show the diagnosis of the trial's last profiled run."""
    with context.db.read() as session:
        shown = why_page(session, get_study(context, session, study_id), number)
    return render(request, "why.html", p=shown)


@router.get("/{number}/trace/{rank}")
def download_trace(context: ContextDep, study_id: str, number: TrialNumberParam, rank: TracedRankParam) -> Response:
    """Download one rank's trace of the last profiled run."""
    trace = diagnoses.raw_trace(context, study_id, number, rank)
    return attached_trace(context, trace, f"{study_id}-{number}")


@router.post("/{number}/why", dependencies=[CsrfChecked, requires(Action.DIAGNOSE_TRIAL)])
def ask_why(context: ContextDep, study_id: str, number: TrialNumberParam) -> Response:
    """Request a profiled run of the trial."""
    diagnoses.request_diagnosis(context, study_id, number)
    return see_other(f"/studies/{study_id}/trials/{number}/why")
