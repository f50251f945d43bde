"""Proxies that the service trusts: the check of the setting, and a warning about a proxy that the setting lacks.

uvicorn applies `X-Forwarded-Proto` and `X-Forwarded-For` of trusted proxies. From everybody else it ignores these
headers, because a client could otherwise choose its own address and evade limits per client.
"""

from __future__ import annotations

import logging
from functools import lru_cache
from ipaddress import ip_network
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # The command line reads the settings, and must not wait for FastAPI's import.
    from fastapi import Request

_log = logging.getLogger(__name__)
_SHORTEST_PREFIX = 8
"""Minimum prefix length of a trusted network; 8 allows 10.0.0.0/8. Without a minimum, two entries, each for one half
of all addresses, would trust everybody.
"""
_MOST_WARNED = 64
"""Maximum number of proxy addresses for which the service remembers that it has logged a warning. If there are more,
warnings repeat.
"""


def check_proxies(proxies: tuple[str, ...]) -> tuple[str, ...]:
    """Check the addresses and networks in the setting `trusted_proxies`, and return them.

    Raises:
        ValueError: an entry is no address or network, or the network is too large.
    """
    for entry in proxies:
        try:
            network = ip_network(entry)
        except ValueError as error:
            raise ValueError(
                f"trusted_proxies ({entry!r}) is no address or network: {error}; name the address from which the proxy "
                'connects, such as ["10.0.0.7"], or its network, such as ["10.244.0.0/16"]'
            ) from None
        if network.prefixlen < _SHORTEST_PREFIX:
            raise ValueError(
                f"trusted_proxies ({entry!r}) trusts too many clients to name their own address; name the proxy's network"
            )
    return proxies


def warn_of_untrusted(request: Request) -> None:
    """Log a warning, once for each address, if a proxy that is not trusted reports a TLS connection
    (`X-Forwarded-Proto: https`).

    Because the proxy is not trusted, the connection's cookies do not become `Secure`, which nobody would notice
    without the warning.
    """
    reports_tls = request.headers.get("x-forwarded-proto", "").strip() == "https"
    if reports_tls and request.url.scheme != "https" and request.client is not None:
        _warn_once(request.client.host)


@lru_cache(maxsize=_MOST_WARNED)
def _warn_once(peer: str) -> None:
    _log.warning(
        "a request from %s says X-Forwarded-Proto: https, but trusted_proxies lacks that address, so session cookies are "
        "not Secure and all clients behind it share one limit; if it is your proxy, add it to SHARDTUNE_TRUSTED_PROXIES",
        peer,
    )
