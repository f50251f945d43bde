"""`/studies/…/trials/N`: one trial."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from shardtune.service.http.errors import NotFound
from shardtune.service.pages.rendering import render
from shardtune.service.pages.views.trial import trial_page
from shardtune.service.process.context import InContext
from shardtune.service.studies.create_and_read import must_exist

router = APIRouter(prefix="/studies/{study_id}/trials")


@router.get("/{number}")
def show_trial(request: Request, context: InContext, study_id: str, number: int) -> Response:
    """One trial of a study."""
    with context.db.read() as session:
        shown = trial_page(session, must_exist(context, session, study_id), number)
    if shown is None:
        raise NotFound("unknown_trial", f"There is no trial {number} in study {study_id}.")
    return render(request, "trial.html", p=shown)
