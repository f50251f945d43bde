"""Pages of studies: the list, one study, and the actions on it."""

from typing import Annotated

from fastapi import APIRouter, Form, Query, Request
from sqlalchemy.orm import Session
from starlette.responses import Response

from shardtune.api_schemas.recommendations.best import DecisionRequest, UserDecision
from shardtune.api_schemas.studies.budget import MOST_PAIRS, MOST_TRIALS
from shardtune.api_schemas.studies.study_changes import Extension
from shardtune.api_schemas.studies.study_request import MOST_QUIET_WAIT_S
from shardtune.api_schemas.studies.study_state import StudyState
from shardtune.api_schemas.trials.trial import TrialState
from shardtune.db.listing import Page
from shardtune.db.queries import overview
from shardtune.db.queries.trial_points import TRIAL_SORTS, TrialFilter
from shardtune.db.tables.studies import StudyRow
from shardtune.service.access.actions import Action
from shardtune.service.http.errors import NotFound, invalid
from shardtune.service.pages.page_access import requires
from shardtune.service.pages.rendering import CsrfChecked, render, see_other
from shardtune.service.pages.views import best, recommendation, words
from shardtune.service.pages.views import study as views
from shardtune.service.pages.views.study_sections.next_step import NextStep
from shardtune.service.process.context import Context, ContextDep
from shardtune.service.recommendations import decisions
from shardtune.service.studies import actions, deletion, extension, placement
from shardtune.service.studies import create_and_read as rules
from shardtune.service.workers import registry

router = APIRouter(prefix="/studies")

_LIST = 40
WaitMinutes = Annotated[float | None, Form(gt=0, le=MOST_QUIET_WAIT_S / 60)]
"""Total minutes that the runs of a study may wait until machines are quiet."""


@router.get("")
def list_studies(
    request: Request,
    context: ContextDep,
    q: Annotated[str, Query(max_length=200)] = "",
    state: str = "",
    page: Annotated[int, Query(ge=1, le=100_000)] = 1,
) -> Response:
    """List studies, newest first."""
    # An unknown state shows all studies: the address may be an old bookmark.
    states = [StudyState(state)] if state in set(StudyState) else []
    with context.db.read() as session:
        rows, total = overview.studies(
            session, context.principal.project_id, q, states, Page("age", True, _LIST, (page - 1) * _LIST)
        )
        shown = best.running_rows(session, rows, context.now())
    return render(
        request,
        "studies.html",
        rows=shown,
        total=total,
        q=q,
        state=state,
        page=page,
        page_size=_LIST,
        states=list(StudyState),
    )


@router.get("/{study_id}")
def show_study(
    request: Request,
    context: ContextDep,
    study_id: str,
    sort: str = "number",
    order: str = "asc",
    state: str = "",
    backend: str = "",
    reason: str = "",
    page: Annotated[int, Query(ge=1, le=100_000)] = 1,
) -> Response:
    """Show the current state of a study."""
    # A fixed set of names: the sort comes from the address and ends up in ORDER BY.
    sort = sort if sort in TRIAL_SORTS else "number"
    selection = Page(sort, order == "desc", views.PAGE, (page - 1) * views.PAGE)
    states = (TrialState(state),) if state in set(TrialState) else ()
    with context.db.read() as session:
        row = rules.get_study(context, session, study_id)
        shown = views.study_page(
            session, row, TrialFilter(states, backend or None, reason or None), selection, context.now()
        )
        lacks_worker = shown.next_step is not None and _lacks_worker(context, session, row, shown.next_step)
    chosen = {"sort": sort, "order": order, "state": state, "backend": backend, "reason": reason, "page": page}
    return render(
        request,
        "study.html",
        p=shown,
        lacks_worker=lacks_worker,
        chosen=chosen,
        page_size=views.PAGE,
        trial_states=list(TrialState),
        origins=words.origins(shown.study),
    )


def _lacks_worker(context: Context, session: Session, row: StudyRow, step: NextStep) -> bool:
    """Whether the next step's button starts runs, and no live worker can execute them."""
    if step.continues_study:
        return not extension.has_worker(context, session, row)
    # A new study begins on whatever software its worker has now.
    return step.repeats_study and not placement.has_worker(
        row.spec, registry.live_workers(context, session, row.project_id)
    )


@router.post("/{study_id}/rerun", dependencies=[CsrfChecked, requires(Action.CLONE_STUDY)])
def rerun(
    context: ContextDep,
    study_id: str,
    wait_minutes: WaitMinutes = None,
    whole_steps: Annotated[bool, Form()] = False,
) -> Response:
    """Create a new study with the specification of a given one and in its project, to measure on the current hardware
    and software. With `whole_steps` no run times short steps."""
    study = rules.read_study(context, study_id)
    spec = study.spec
    if wait_minutes is not None:
        spec = spec.model_copy(update={"wait_for_quiet_s": max(spec.wait_for_quiet_s or 0.0, 60.0 * wait_minutes)})
    if whole_steps:
        spec = spec.model_copy(update={"budget": spec.budget.model_copy(update={"short_steps": False})})
    again = rules.create_study(context, spec, project_id=study.project_id)
    return see_other(f"/studies/{again.study_id}")


@router.post("/{study_id}/extend", dependencies=[CsrfChecked, requires(Action.EXTEND_STUDY)])
def extend(
    context: ContextDep,
    study_id: str,
    add_trials: Annotated[int | None, Form(ge=1, le=MOST_TRIALS)] = None,
    add_pairs: Annotated[int | None, Form(ge=1, le=MOST_PAIRS)] = None,
    wait_minutes: WaitMinutes = None,
) -> Response:
    """Add trials, or pairs of the final comparison, to the study."""
    if add_trials is None and add_pairs is None:
        raise invalid("add_trials", None, "add_trials (empty): give add_trials or add_pairs")
    wait_s = None if wait_minutes is None else 60.0 * wait_minutes
    extension.extend(context, study_id, Extension(add_trials=add_trials, add_pairs=add_pairs, wait_for_quiet_s=wait_s))
    return see_other(f"/studies/{study_id}")


@router.post("/{study_id}/recommendation/{action}", dependencies=[CsrfChecked, requires(Action.DECIDE_ON_BEST)])
def decide(context: ContextDep, study_id: str, action: str) -> Response:
    """Apply an action to a study's recommendation: approve, reject, pin, unpin or roll back."""
    if action not in tuple(UserDecision):
        raise NotFound("unknown_action", f"A recommendation can be {', '.join(UserDecision)}, not {action!r}.")
    with context.db.read() as session:
        row = rules.get_study(context, session, study_id)
        recommended = recommendation.of_study(session, study_id)
    if recommended is None:
        raise NotFound("unknown_recommendation", f"Study {study_id} has no recommendation.")
    # With the recommendation's id: a decision must not hit a newer one that this page has not shown.
    request = DecisionRequest(recommendation_id=recommended.recommendation_id)
    decisions.decide(context, recommended.target_key, UserDecision(action), request, project_id=row.project_id)
    return see_other(f"/studies/{study_id}")


@router.post("/{study_id}/pause", dependencies=[CsrfChecked, requires(Action.PAUSE_STUDY)])
def pause(context: ContextDep, study_id: str) -> Response:
    """Pause the study."""
    actions.pause(context, study_id, paused=True)
    return see_other(f"/studies/{study_id}")


@router.post("/{study_id}/resume", dependencies=[CsrfChecked, requires(Action.RESUME_STUDY)])
def resume(context: ContextDep, study_id: str) -> Response:
    """Resume the study."""
    actions.pause(context, study_id, paused=False)
    return see_other(f"/studies/{study_id}")


@router.post("/{study_id}/cancel", dependencies=[CsrfChecked, requires(Action.CANCEL_STUDY)])
def cancel(context: ContextDep, study_id: str) -> Response:
    """Cancel the study."""
    actions.cancel(context, study_id)
    return see_other(f"/studies/{study_id}")


@router.post("/{study_id}/delete", dependencies=[CsrfChecked, requires(Action.DELETE_STUDY)])
def delete(context: ContextDep, study_id: str, withdraw: Annotated[bool, Form()] = False) -> Response:
    """Hide the study from all lists."""
    deletion.delete(context, study_id, withdraw)
    return see_other(f"/studies/{study_id}")


@router.post("/{study_id}/undelete", dependencies=[CsrfChecked, requires(Action.UNDELETE_STUDY)])
def undelete(context: ContextDep, study_id: str) -> Response:
    """Restore the deleted study."""
    deletion.undelete(context, study_id)
    return see_other(f"/studies/{study_id}")
