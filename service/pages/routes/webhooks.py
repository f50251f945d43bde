"""Pages `/settings/webhooks`: create a webhook, list its messages, test, disable, rotate and delete it."""

from typing import Annotated

from fastapi import APIRouter, Form, Query, Request
from pydantic import ValidationError
from starlette.responses import Response

from shardtune.api_schemas.notifications.webhooks import WebhookSpec
from shardtune.service.access.actions import Action
from shardtune.service.http.errors import Invalid
from shardtune.service.http.validation_errors import field_error
from shardtune.service.pages.page_access import requires
from shardtune.service.pages.rendering import CsrfChecked, render, see_other
from shardtune.service.pages.views import settings
from shardtune.service.process.context import Context, ContextDep
from shardtune.service.webhooks import manage

router = APIRouter(prefix="/webhooks")

_PAGE = 25
"""Number of messages per page."""
_STATES = ("delivered", "waiting", "failed")


@router.post("", dependencies=[CsrfChecked, requires(Action.CREATE_WEBHOOK)])
def create_webhook(
    request: Request,
    context: ContextDep,
    url: Annotated[str, Form(max_length=4000)] = "",
    study: Annotated[str, Form(max_length=200)] = "",
    event: Annotated[list[str] | None, Form()] = None,
) -> Response:
    """Create a webhook and show its secret, which is shown only this once."""
    typed = {"url": url.strip(), "study_id": study.strip(), "events": event or []}
    try:
        hook = manage.create(context, WebhookSpec.model_validate(typed | {"study_id": study.strip() or None}))
    except ValidationError as error:
        return settings.show(request, context, [field_error(item) for item in error.errors()], typed=typed)
    except Invalid as error:
        return settings.show(request, context, error.errors, typed=typed)
    return settings.show(request, context, secret=hook.secret, created=f"The webhook to {hook.url}")


@router.get("/{webhook_id}")
def show_webhook(
    request: Request,
    context: ContextDep,
    webhook_id: str,
    state: str = "",
    page: Annotated[int, Query(ge=1, le=100_000)] = 1,
) -> Response:
    """Show a webhook and its messages, newest first."""
    return _show(request, context, webhook_id, state=state if state in _STATES else "", page=page)


@router.post("/{webhook_id}/rotate", dependencies=[CsrfChecked, requires(Action.ROTATE_WEBHOOK)])
def rotate_secret(request: Request, context: ContextDep, webhook_id: str) -> Response:
    """Create a new secret for the webhook and show it, which is done only this once."""
    return _show(request, context, webhook_id, secret=manage.rotate(context, webhook_id).secret)


@router.post("/{webhook_id}/test", dependencies=[CsrfChecked, requires(Action.TEST_WEBHOOK)])
async def test_webhook(context: ContextDep, webhook_id: str) -> Response:
    """Send a test message now; the list of messages shows its result."""
    await manage.send_test(context, webhook_id)
    return see_other(f"/settings/webhooks/{webhook_id}")


@router.post("/{webhook_id}/delete", dependencies=[CsrfChecked, requires(Action.DELETE_WEBHOOK)])
def delete_webhook(context: ContextDep, webhook_id: str) -> Response:
    """Delete the webhook and its messages."""
    manage.delete(context, webhook_id)
    return see_other("/settings")


@router.post("/{webhook_id}/enable", dependencies=[CsrfChecked, requires(Action.ENABLE_WEBHOOK)])
def enable_webhook(context: ContextDep, webhook_id: str) -> Response:
    """Enable the webhook."""
    manage.enable(context, webhook_id)
    return see_other(f"/settings/webhooks/{webhook_id}")


@router.post("/{webhook_id}/disable", dependencies=[CsrfChecked, requires(Action.DISABLE_WEBHOOK)])
def disable_webhook(context: ContextDep, webhook_id: str) -> Response:
    """Disable the webhook."""
    manage.disable(context, webhook_id)
    return see_other(f"/settings/webhooks/{webhook_id}")


def _show(  # nosec B107 # empty where no secret is shown
    request: Request, context: Context, webhook_id: str, state: str = "", page: int = 1, secret: str = ""
) -> Response:
    deliveries, total = manage.delivery_list(context, webhook_id, state, (page - 1) * _PAGE, _PAGE)
    return render(
        request,
        "webhook.html",
        hook=manage.read(context, webhook_id),
        deliveries=deliveries,
        total=total,
        state=state,
        page=page,
        page_size=_PAGE,
        secret=secret,
    )
