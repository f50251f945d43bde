"""Page `/schedules`: schedules and retunes of recommendations."""

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Form, Request
from starlette.responses import Response

from shardtune.db.queries.retunes import RetuneFilter
from shardtune.service.access import retune_budget
from shardtune.service.access.actions import Action
from shardtune.service.http.error_codes import FieldError
from shardtune.service.http.errors import Conflict, Invalid
from shardtune.service.pages.page_access import requires
from shardtune.service.pages.rendering import CsrfChecked, render, see_other
from shardtune.service.pages.views.schedules import ScheduleForm, ScheduleFormErrors, cards, choices, lines, spec_of
from shardtune.service.process.context import Context, ContextDep
from shardtune.service.retuning import records
from shardtune.service.schedules import manage as rules

router = APIRouter(prefix="/schedules")

_MOST = 100
"""Maximum number of rows that each list on the page shows; the API returns all."""


@router.get("")
def show_schedules(request: Request, context: ContextDep) -> Response:
    """Show schedules, a form for a new one, and the newest retunes."""
    return _show_page(request, context, ScheduleForm())


@router.post("", dependencies=[CsrfChecked, requires(Action.CREATE_SCHEDULE)])
def create_schedule(request: Request, context: ContextDep, form: Annotated[ScheduleForm, Form()]) -> Response:
    """Create a schedule, or show the form again with its errors."""
    try:
        rules.create_schedule(context, spec_of(form))
    except ScheduleFormErrors as error:
        return _show_page(request, context, form, error.errors)
    except (Invalid, Conflict) as error:
        return _show_page(request, context, form, error.errors or [FieldError(field="", message=error.detail)])
    return see_other("/schedules")


@router.post("/{schedule_id}/pause", dependencies=[CsrfChecked, requires(Action.PAUSE_SCHEDULE)])
def pause(context: ContextDep, schedule_id: str) -> Response:
    """Pause a schedule."""
    rules.pause(context, schedule_id, True)
    return see_other("/schedules")


@router.post("/{schedule_id}/resume", dependencies=[CsrfChecked, requires(Action.RESUME_SCHEDULE)])
def resume(context: ContextDep, schedule_id: str) -> Response:
    """Resume a paused schedule, which runs again at its next scheduled time."""
    rules.pause(context, schedule_id, False)
    return see_other("/schedules")


@router.post("/{schedule_id}/run", dependencies=[CsrfChecked, requires(Action.RUN_SCHEDULE)])
def run(context: ContextDep, schedule_id: str) -> Response:
    """Run a schedule now: measure its tuning targets again."""
    rules.run_now(context, schedule_id)
    return see_other("/schedules")


@router.post("/{schedule_id}/delete", dependencies=[CsrfChecked, requires(Action.DELETE_SCHEDULE)])
def delete(context: ContextDep, schedule_id: str) -> Response:
    """Delete a schedule."""
    rules.delete(context, schedule_id)
    return see_other("/schedules")


@router.post("/retunes/{retune_id}/cancel", dependencies=[CsrfChecked, requires(Action.CANCEL_RETUNE)])
def cancel_retune(context: ContextDep, retune_id: str) -> Response:
    """Cancel a queued or running retune."""
    records.cancel_retune(context, retune_id)
    return see_other("/schedules#retunes")


def _show_page(request: Request, context: Context, form: ScheduleForm, errors: Sequence[FieldError] = ()) -> Response:
    stored = rules.list_schedules(context, None, None, _MOST).schedules
    # The newest retunes serve twice: as the list, and as the ticks of schedules without times.
    newest = records.list_retunes(context, RetuneFilter(), None, _MOST).retunes
    names = {schedule.schedule_id: schedule.name for schedule in stored}
    with context.db.read() as session:
        shown, selectable = lines(session, newest, names), choices(session, context.principal.home)
        accounts = retune_budget.budgets_of(context, session, context.principal.home)
    return render(
        request,
        "schedules.html",
        status=422 if errors else 200,
        cards=cards(stored, newest, context.now()),
        following=min(
            (schedule for schedule in stored if schedule.next_tick_at),
            key=lambda schedule: schedule.next_tick_at or context.now(),
            default=None,
        ),
        accounts=accounts,
        retunes=shown,
        form=form,
        choices=selectable,
        errors=list(errors),
    )
