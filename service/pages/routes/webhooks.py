"""`/settings/webhooks`, a part of the settings: make a webhook, read what became of its messages, test, disable, rotate, delete."""

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Form, Query, Request
from pydantic import ValidationError
from starlette.responses import Response

from shardtune.api_schemas.keys import Scope
from shardtune.api_schemas.webhooks import WebhookSpec
from shardtune.service.http.errors import Invalid, NotFound
from shardtune.service.http.validation_errors import field_error
from shardtune.service.pages.page_access import may
from shardtune.service.pages.rendering import Checked, render, see_other
from shardtune.service.pages.views import settings
from shardtune.service.process.context import Context, InContext
from shardtune.service.webhooks import manage

router = APIRouter(prefix="/webhooks", dependencies=[may(Scope.ADMIN)])

_PAGE = 25
"""Messages on a page."""
_STATES = ("delivered", "waiting", "failed")


@router.post("", dependencies=[Checked])
def create_webhook(
    request: Request,
    context: InContext,
    url: Annotated[str, Form(max_length=4000)] = "",
    study: Annotated[str, Form(max_length=200)] = "",
    event: Annotated[list[str] | None, Form()] = None,
) -> Response:
    """Make a webhook and show its secret, this once."""
    typed = {"url": url.strip(), "study_id": study.strip(), "events": event or []}
    try:
        created = manage.create(context, WebhookSpec.model_validate(typed | {"study_id": study.strip() or None}))
    except ValidationError as error:
        return settings.show(request, context, [field_error(item) for item in error.errors()], typed=typed)
    except Invalid as error:
        return settings.show(request, context, error.errors, typed=typed)
    return settings.show(request, context, secret=created.secret, made=f"The webhook to {created.url}")


@router.get("/{webhook_id}")
def show_webhook(
    request: Request,
    context: InContext,
    webhook_id: str,
    state: str = "",
    page: Annotated[int, Query(ge=1, le=100_000)] = 1,
) -> Response:
    """One webhook and its messages, newest first."""
    return _show(request, context, webhook_id, state=state if state in _STATES else "", page=page)


@router.post("/{webhook_id}/rotate", dependencies=[Checked])
def rotate_secret(request: Request, context: InContext, webhook_id: str) -> Response:
    """Make a new secret and show it, this once."""
    return _show(request, context, webhook_id, secret=manage.rotate(context, webhook_id).secret)


@router.post("/{webhook_id}/test", dependencies=[Checked])
async def test_webhook(context: InContext, webhook_id: str) -> Response:
    """Send a message now; the list says what came of it."""
    await manage.test(context, webhook_id)
    return see_other(f"/settings/webhooks/{webhook_id}")


@router.post("/{webhook_id}/delete", dependencies=[Checked])
def delete_webhook(context: InContext, webhook_id: str) -> Response:
    """Forget it and its messages."""
    manage.delete(context, webhook_id)
    return see_other("/settings")


_SWITCHES: dict[str, Callable[[Context, str], Any]] = {"enable": manage.enable, "disable": manage.disable}


@router.post("/{webhook_id}/{action}", dependencies=[Checked])
def switch(context: InContext, webhook_id: str, action: str) -> Response:
    """Enable or disable it."""
    if action not in _SWITCHES:
        raise NotFound(
            "unknown_action", f"A webhook can be tested, enabled, disabled, rotated or deleted, not {action!r}."
        )
    _SWITCHES[action](context, webhook_id)
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
