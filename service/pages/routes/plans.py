"""Page `/plans`: hours, money and finish date of a whole training run, by kind and number of GPUs."""

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Form, Query, Request
from starlette.responses import Response

from shardtune.service.access.actions import Action
from shardtune.service.pages.page_access import requires
from shardtune.service.pages.rendering import CsrfChecked, render
from shardtune.service.pages.views.plans.form import PlanForm
from shardtune.service.pages.views.plans.page import plans_page
from shardtune.service.process.context import ContextDep
from shardtune.service.routes.plans import computed_plan

router = APIRouter(prefix="/plans")


@router.get("")
def show(request: Request, context: ContextDep, form: Annotated[PlanForm, Query()]) -> Response:
    """Show the form of the page for plans, and the plan that the query string describes, if it describes one.

    An address that no longer describes a plan, such as one whose deadline has passed, opens the form with the error.
    """
    shown = plans_page(form, partial(computed_plan, context) if request.query_params else None)
    return render(request, "plans.html", p=shown)


@router.post("", dependencies=[CsrfChecked, requires(Action.PREDICT)])
def compute(request: Request, context: ContextDep, form: Annotated[PlanForm, Form()]) -> Response:
    """Show the plan of a form whose model was pasted, which a URL cannot hold; nothing is stored."""
    shown = plans_page(form, partial(computed_plan, context))
    return render(request, "plans.html", status=422 if shown.errors else 200, p=shown)
