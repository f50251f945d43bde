"""Render templates with security headers, the theme and the CSRF token of forms."""

import hmac
import secrets
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, get_args
from urllib.parse import quote, urlencode

from fastapi import Depends, Form, Request
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from starlette.responses import HTMLResponse, Response

from shardtune.api_schemas.strategies import Checkpointing
from shardtune.db.clock import utc_now
from shardtune.service.pages import assets, cookies, figures
from shardtune.service.pages.shell_commands import ServiceCommands
from shardtune.service.process.principal import LOCAL
from shardtune.service.wording import diagnosis_words, disambiguate
from shardtune.service.wording.answers import step_limits
from shardtune.service.wording.backend_words import BACKENDS
from shardtune.service.wording.knob_words import knob_help

THEME_COOKIE = "shardtune_theme"
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    # Pages change with every run, and may show a secret once.
    "Cache-Control": "no-store",
}


class PageRejected(Exception):
    """Error that a form's CSRF token does not belong to the browser's session."""


def render(request: Request, template: str, status: int = 200, **values: Any) -> HTMLResponse:
    """Render a template with the values that every page needs."""
    owner = cookies.owner_of(request)
    visitor = "" if owner else secrets.token_urlsafe(24)
    theme = request.cookies.get(THEME_COOKIE)
    context = {
        "path": request.url.path,
        "query": request.query_params,
        "csrf": cookies.form_token(owner or visitor),
        "theme": theme if theme in ("light", "dark") else "",
        "key_name": _key_name(request),
        "now": _now(request),
        "commands": _commands(request),
        **values,
    }
    response = HTMLResponse(_TEMPLATES.get_template(template).render(context), status, headers=_HEADERS)
    if visitor:
        cookies.write(request, response, cookies.VISITOR, visitor)
    return response


def _check_csrf_token(request: Request, csrf: Annotated[str, Form()] = "") -> None:
    owner = cookies.owner_of(request)
    # Constant time: `==` would reveal how many leading characters of a guess are right.
    if not owner or not hmac.compare_digest(cookies.form_token(owner).encode(), csrf.encode()):
        raise PageRejected(
            "This form is out of date, or was sent from another site. Go back, reload the page, and send it again."
        )


CsrfChecked = Depends(_check_csrf_token)
"""Dependency of every route that changes data. It requires the CSRF token of the browser's session."""


def see_other(address: str) -> Response:
    """Redirect the browser after it sent a form, so that a reload does not send the form again."""
    return Response(status_code=303, headers={"Location": quote(address, safe=":/%#?=@[]!$&'()*+,;~")})


def query(now: Any, **changes: Any) -> str:
    """Return the current query string with some values changed; the value None or an empty text removes its
    parameter."""
    pairs = [(key, value) for key, value in now.multi_items() if key not in changes]
    pairs += [(key, str(value)) for key, value in changes.items() if value not in (None, "")]
    return "?" + urlencode(pairs)


def _key_name(request: Request) -> str:
    """Return the name of the API key with which the user logged in; empty without a login."""
    principal = getattr(request.state, "principal", LOCAL)
    return principal.name if principal.key_id else ""


def _commands(request: Request) -> ServiceCommands:
    # A page is rendered for a logged-in key, or for anybody on this machine while the service needs no key.
    return ServiceCommands(str(request.base_url).rstrip("/"), requires_key=bool(_key_name(request)))


def _now(request: Request) -> datetime:
    context = getattr(request.app.state, "context", None)
    moment: datetime = context.now() if context is not None else utc_now()
    return moment


def _time_element(moment: datetime | None, now: datetime) -> Markup:
    """Format a time relative to now as a `time` element, with the exact time as tooltip and for scripts."""
    if moment is None:
        return Markup("–")
    pattern = Markup('<time datetime="{}" title="{}">{}</time>')
    return pattern.format(moment.isoformat(timespec="seconds"), figures.exact(moment), figures.relative(moment, now))


def _knob_value(value: Any, name: str) -> str:
    return disambiguate.knob_value(name, value)


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= figures.FILTERS | {
        "knob_help": knob_help,
        "limits": step_limits.limits,
        "expected": diagnosis_words.expected_saving,
        "ago": _time_element,
        "knob_value": _knob_value,
    }
    environment.globals |= {"static": assets.url, "with_query": query, "backends": BACKENDS}
    environment.globals["checkpointing_modes"] = get_args(Checkpointing)
    return environment


_TEMPLATES = _environment()
