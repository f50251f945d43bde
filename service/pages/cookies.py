"""Cookies of the pages: the session, and for browsers without a session a visitor id that their forms are bound to.

Over TLS the names begin with `__Host-`: browsers accept such a cookie only from this host, over TLS and for all paths, so
that no other site of the same domain can set it. Over plain HTTP, meant for the service's own machine, browsers reject
the prefix, and the names are without it.
"""

import hashlib
import hmac

from fastapi import Request
from starlette.responses import Response

from shardtune.service.trusted_proxies import warn_of_untrusted

SESSION, VISITOR = "shardtune_session", "shardtune_visitor"


def read(request: Request, name: str) -> str:
    """Return a cookie's value; empty without the cookie."""
    return request.cookies.get(_full_name(request, name), "")


def write(request: Request, response: Response, name: str, value: str) -> None:
    """Set a cookie that scripts cannot read and that requests from other sites do not carry."""
    warn_of_untrusted(request)
    response.set_cookie(
        _full_name(request, name), value, httponly=True, samesite="strict", secure=_is_secure(request), path="/"
    )


def drop(request: Request, response: Response, name: str) -> None:
    """Delete a cookie."""
    response.delete_cookie(
        _full_name(request, name), httponly=True, samesite="strict", secure=_is_secure(request), path="/"
    )


def form_token(owner: str) -> str:
    """Return the CSRF token for the forms of a session or visitor; the token does not reveal the cookie's value."""
    return hmac.new(owner.encode(), b"form of the pages", hashlib.sha256).hexdigest()


def owner_of(request: Request) -> str:
    """Return the session, or else the visitor id, to which the CSRF tokens of the browser's forms belong; empty before
    the browser has opened its first page."""
    return read(request, SESSION) or read(request, VISITOR)


def _full_name(request: Request, name: str) -> str:
    return f"__Host-{name}" if _is_secure(request) else name


def _is_secure(request: Request) -> bool:
    """Whether the connection of the browser uses TLS."""
    # Behind a proxy of `trusted_proxies` that terminates TLS, the server takes the scheme from X-Forwarded-Proto.
    return request.url.scheme == "https"
