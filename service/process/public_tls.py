"""TLS context for requests to hosts of the internet."""

import ssl
from functools import cache

import httpx


@cache
def public_tls() -> ssl.SSLContext:
    """Create a TLS context with the certificates that httpx trusts by default."""
    # Cached: reading the certificates takes as long as sending a message.
    return httpx.create_ssl_context(trust_env=False)
