"""Settings page: keys, projects and webhooks, with the secret or the errors of a form."""

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import Request
from starlette.responses import Response

from shardtune.api_schemas.access.keys import Scope
from shardtune.api_schemas.notifications.events import DEFAULT_WEBHOOK_EVENTS, EVENT_TYPES
from shardtune.service.access import manage_keys
from shardtune.service.http.error_codes import FieldError
from shardtune.service.pages.rendering import render
from shardtune.service.pages.views import quotas
from shardtune.service.process.context import Context
from shardtune.service.webhooks import manage as webhooks

_MOST = 200
"""Maximum number of API keys that the page shows; the REST API returns all."""


def show(  # nosec B107 # empty where no secret is shown
    request: Request,
    context: Context,
    errors: Sequence[FieldError] = (),
    secret: str = "",
    created: str = "",
    typed: Mapping[str, Any] | None = None,
) -> Response:
    """Render the settings page. After a form was sent, it shows the form's errors and typed values, or the new
    secret."""
    return render(
        request,
        "settings.html",
        status=422 if errors else 200,
        keys=manage_keys.list_keys(context, None, _MOST).keys,
        scopes=list(Scope),
        projects=quotas.lines(context),
        webhooks=webhooks.list_webhooks(context),
        event_types=EVENT_TYPES,
        errors=errors,
        secret=secret,
        created=created,
        typed=typed or {"events": DEFAULT_WEBHOOK_EVENTS},
    )
