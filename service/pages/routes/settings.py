"""Page `/settings`: API keys, projects and webhooks. A secret is shown only in the answer to its creation."""

from typing import Annotated

from fastapi import APIRouter, Form, Request
from pydantic import ValidationError
from starlette.responses import Response

from shardtune.api_schemas.access.keys import KeySpec
from shardtune.service.access import manage_keys
from shardtune.service.access.actions import Action
from shardtune.service.http.validation_errors import field_error
from shardtune.service.pages.page_access import requires
from shardtune.service.pages.rendering import CsrfChecked, see_other
from shardtune.service.pages.routes import webhooks
from shardtune.service.pages.views.settings import show
from shardtune.service.process.context import ContextDep

router = APIRouter(prefix="/settings", dependencies=[requires(Action.READ_KEYS)])


@router.get("")
def show_settings(request: Request, context: ContextDep) -> Response:
    """Show keys and webhooks, with forms for new ones."""
    return show(request, context)


@router.post("/keys", dependencies=[CsrfChecked, requires(Action.CREATE_KEY)])
def create_key(
    request: Request,
    context: ContextDep,
    name: Annotated[str, Form(max_length=200)] = "",
    project: Annotated[str, Form(max_length=200)] = "",
    days: Annotated[str, Form(max_length=20)] = "",
    scope: Annotated[list[str] | None, Form()] = None,
) -> Response:
    """Create a key and show its secret, only this once."""
    values = {"name": name.strip(), "scopes": scope or [], "project_id": project.strip() or None}
    try:
        spec = KeySpec.model_validate(values | {"expires_in_days": days.strip() or None})
    except ValidationError as error:
        return show(request, context, errors=[field_error(item) for item in error.errors()])
    key = manage_keys.create(context, spec)
    assert key.secret is not None, "only a repeated request has none"
    # Rendered, not redirected: the secret must not appear in an address or be stored for the next request.
    return show(request, context, secret=key.secret.get_secret_value(), created=f"Key {spec.name}")


@router.post("/keys/{key_id}/revoke", dependencies=[CsrfChecked, requires(Action.REVOKE_KEY)])
def revoke_key(context: ContextDep, key_id: str) -> Response:
    """Revoke a key."""
    manage_keys.revoke(context, key_id)
    return see_other("/settings")


router.include_router(webhooks.router)
