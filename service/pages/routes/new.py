"""Page `/new`: predict which configurations fit, and create a study."""

from collections.abc import Sequence
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Form, Query, Request
from starlette.responses import Response

from shardtune.service.access.actions import Action
from shardtune.service.http.error_codes import FieldError
from shardtune.service.http.errors import ApiError, Invalid
from shardtune.service.hub import named_models
from shardtune.service.pages.page_access import requires
from shardtune.service.pages.rendering import CsrfChecked, render, see_other
from shardtune.service.pages.views import quotas
from shardtune.service.pages.views.new_study.calculator import ServiceKnowledge, new_page
from shardtune.service.pages.views.new_study.form import StudyForm, study_request
from shardtune.service.pages.views.new_study.form_fields import FormErrors
from shardtune.service.process.context import Context, ContextDep
from shardtune.service.studies import create_and_read, local_machine, predictions
from shardtune.service.workers import registry

router = APIRouter(prefix="/new")


@router.get("")
def start(request: Request, context: ContextDep, form: Annotated[StudyForm, Query()]) -> Response:
    """Show the form for a new study, filled with the values of the query string."""
    return _show_form(request, context, form)


@router.post("/calculate", dependencies=[CsrfChecked, requires(Action.PREDICT)])
def calculate(request: Request, context: ContextDep, form: Annotated[StudyForm, Form()]) -> Response:
    """Show the form for a new study again, with predictions for its values; nothing is stored."""
    return _show_form(request, context, form)


@router.post("", dependencies=[CsrfChecked, requires(Action.CREATE_STUDY)])
def create(request: Request, context: ContextDep, form: Annotated[StudyForm, Form()]) -> Response:
    """Create the study that the form describes, or show the form again with its errors."""
    try:
        with context.db.read() as session:
            request_body = study_request(form, registry.live_workers(context, session))
        study = create_and_read.create_study(context, request_body)
    except FormErrors as error:
        return _show_form(request, context, form, error.errors, 422)
    except ApiError as error:
        if not isinstance(error, Invalid) and error.code != "hub_unreachable":
            raise
        # The study's own rules, such as divisibility, know only the whole; their errors name fields, too.
        return _show_form(request, context, form, error.errors or [FieldError(field="", message=error.detail)], 422)
    return see_other(f"/studies/{study.study_id}")


def _show_form(
    request: Request, context: Context, form: StudyForm, errors: Sequence[FieldError] = (), status: int = 200
) -> Response:
    with context.db.read() as session:
        live = registry.live_workers(context, session)
    # After the transaction: the hub may take seconds.
    knowledge = ServiceKnowledge(
        read_model=partial(named_models.with_config, context),
        experience_of=partial(local_machine.worker_experience, context),
        with_trace=partial(predictions.add_trace, context),
        measure=context.settings.measure,
    )
    shown = new_page(form, live, knowledge, errors, quotas.own_usage(context))
    return render(request, "new.html", status=status, p=shown)
