"""Cookies of the pages: the session, and for a browser without one a name that its forms are bound to.

Over TLS their names begin with `__Host-`: browsers then take such a cookie from this very host only, over TLS, for all of
its addresses, so that no other site of the same domain can set one. Over plain HTTP, which is for the service's own
machine, browsers would reject that prefix, and the names are without it.
"""

import hashlib
import hmac

from fastapi import Request
from starlette.responses import Response

SESSION, VISITOR = "shardtune_session", "shardtune_visitor"


def read(request: Request, name: str) -> str:
    """Its value; empty where there is none."""
    return request.cookies.get(_full(request, name), "")


def write(request: Request, response: Response, name: str, value: str) -> None:
    """Have the browser keep it, out of reach of scripts and of other sites' requests."""
    response.set_cookie(
        _full(request, name), value, httponly=True, samesite="strict", secure=_is_secure(request), path="/"
    )


def drop(request: Request, response: Response, name: str) -> None:
    """Have the browser forget it."""
    response.delete_cookie(_full(request, name), httponly=True, samesite="strict", secure=_is_secure(request), path="/")


def form_token(owner: str) -> str:
    """What the forms of a session (or visitor) carry: of no use with another one's cookie, and says nothing about it."""
    return hmac.new(owner.encode(), b"form of the pages", hashlib.sha256).hexdigest()


def owner_of(request: Request) -> str:
    """The session, else the visitor, whose forms these are; empty for a browser that has been shown no page."""
    return read(request, SESSION) or read(request, VISITOR)


def _full(request: Request, name: str) -> str:
    return f"__Host-{name}" if _is_secure(request) else name


def _is_secure(request: Request) -> bool:
    """Behind a proxy that ends TLS: as its X-Forwarded-Proto says."""
    return request.url.scheme == "https"
