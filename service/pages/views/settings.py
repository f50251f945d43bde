"""The settings page: all keys, projects and webhooks, and what a form made or got wrong."""

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import Request
from starlette.responses import Response

from shardtune.api_schemas.access.keys import Scope
from shardtune.api_schemas.notifications.events import EVENT_TYPES, WHAT_MATTERS
from shardtune.service.access import manage_keys
from shardtune.service.http.error_codes import FieldError
from shardtune.service.pages.rendering import render
from shardtune.service.pages.views import quotas
from shardtune.service.process.context import Context
from shardtune.service.webhooks import manage as webhooks

_MOST = 200
"""Keys listed; more are read over the API."""


def show(  # nosec B107 # empty where no secret is shown
    request: Request,
    context: Context,
    errors: Sequence[FieldError] = (),
    secret: str = "",
    made: str = "",
    typed: Mapping[str, Any] | None = None,
) -> Response:
    """The page; after a form with what was wrong in it and what was typed, or with the secret it made."""
    return render(
        request,
        "settings.html",
        status=422 if errors else 200,
        keys=manage_keys.page(context, None, _MOST).keys,
        scopes=list(Scope),
        projects=quotas.lines(context),
        webhooks=webhooks.everyone(context),
        event_types=EVENT_TYPES,
        errors=errors,
        secret=secret,
        made=made,
        typed=typed or {"events": WHAT_MATTERS},
    )
