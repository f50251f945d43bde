"""Check that the URLs of webhooks are valid and do not name private addresses.

The addresses of host names are checked when a message is sent (service.process.public_addresses).
"""

import httpx

from shardtune.service.http.errors import invalid
from shardtune.service.process.public_addresses import is_public, parse_literal

REMEDY = "use one, or let the operator set SHARDTUNE_WEBHOOK_ALLOW_PRIVATE=true"
"""Remedy that the error names if a webhook URL has an address that is not public."""
_PORTS = range(1, 1 << 16)


def check_url(url: str, allow_private: bool) -> None:
    """Reject a webhook URL for mistakes that show without resolving its host name.

    Raises:
        Invalid: the URL has another scheme than http(s), a user and password, no host, or a literal address that is
            not public.
    """
    try:
        parsed = httpx.URL(url)
        # Decodes it, which fails for some that were accepted above, such as `xn--`.
        host = parsed.host
    except (httpx.InvalidURL, ValueError) as error:
        raise invalid("url", url, f"url ({url:.200}) is not a URL: {error}; give https://HOST/PATH") from None
    if parsed.scheme not in ("http", "https"):
        raise invalid("url", url, f"url ({url:.200}) has scheme ({parsed.scheme}); webhooks go to https:// or http://")
    if parsed.userinfo:
        raise invalid(
            "url", None, "url carries a user and password, which logs would show; verify the signature instead"
        )
    if not host:
        raise invalid("url", url, f"url ({url:.200}) names no host; give https://HOST/PATH")
    if parsed.port is not None and parsed.port not in _PORTS:
        raise invalid("url", url, f"url ({url:.200}) has port ({parsed.port}); ports are 1 to 65535")
    literal = parse_literal(host)
    if literal is not None and not allow_private and not is_public(literal):
        raise invalid("url", url, f"url ({url:.200}): {literal} is not a public address; {REMEDY}")
