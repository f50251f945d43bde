"""Check that a request comes from this machine and this service's user while there are no API keys: from a program, or
from a page of this service in a browser.

Other users of the machine can connect to a loopback port, too; the kernel knows whose connection it is.

A proxy on this machine makes every client look local. Requests with a header that proxies add are therefore rejected,
and so is HTTP/1.0, which nginx by default speaks to its upstream. A proxy of the service's own user or of root that
leaves no trace cannot be detected: its operator must set SHARDTUNE_REQUIRE_KEYS, as every file under deploy/ does.
"""

import os
from ipaddress import ip_address

from fastapi import Request

from shardtune.service.http.errors import Forbidden
from shardtune.service.process.peer_user import PEER_USER, PeerUser

_FORWARDING = ("forwarded", "via", "x-real-ip", "x-client-ip", "true-client-ip", "cf-connecting-ip")
_FORWARDING_PREFIX = "x-forwarded-"
_ROOT = 0
_OWN_SITE = ("same-origin", "none")
"""Allowed values of the header Sec-Fetch-Site: the request comes from a page of this service, or the user has typed
the address in.
"""


def check_is_local(request: Request) -> None:
    """Reject a request that comes from another machine or another user, or that a page of another website has caused.

    Raises:
        Forbidden: contains the reason.
    """
    reason = _from_elsewhere(request) or _forwarded(request) or _other_site(request) or _other_user(request)
    if reason is not None:
        raise Forbidden(
            "local_only",
            f"without any API key the service answers its own user on this machine only, not {reason}; make a key with "
            "`shardtune keys create` on the service's host",
        )


def _from_elsewhere(request: Request) -> str | None:
    peer = request.client.host if request.client else "localhost"
    # The host name is checked against DNS rebinding: a web page's own name may resolve to this machine.
    return next((host for host in (peer, request.url.hostname or "") if not is_loopback(host)), None)


def _forwarded(request: Request) -> str | None:
    for name in request.headers:
        if name in _FORWARDING or name.startswith(_FORWARDING_PREFIX):
            return f"what a proxy passes on ({name})"
    return "HTTP/1.0, which proxies speak" if request.scope.get("http_version") == "1.0" else None


def _other_site(request: Request) -> str | None:
    # Browsers send Sec-Fetch-Site; older ones send Origin with requests that change something.
    site = request.headers.get("sec-fetch-site")
    if site is not None and site not in _OWN_SITE:
        return f"pages of other sites (Sec-Fetch-Site: {site:.40})"
    origin = request.headers.get("origin")
    if origin is not None and origin != f"{request.url.scheme}://{request.headers.get('host', '')}":
        return f"pages of other sites (Origin: {origin:.80})"
    return None


def _other_user(request: Request) -> str | None:
    peer = getattr(request.state, PEER_USER, None)
    # Only a server has connections: tests call the application without one.
    if not isinstance(peer, PeerUser) or peer.uid in (_ROOT, os.geteuid()):
        return None
    return "a user who cannot be determined" if peer.uid is None else f"programs of uid {peer.uid}"


def is_loopback(host: str) -> bool:
    """Whether an IP address or host name is a loopback address, that is, means this machine."""
    if host == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
