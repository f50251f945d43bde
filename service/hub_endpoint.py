"""Address of the Hugging Face hub, or of a mirror, that the service reads models from."""

import os
from collections.abc import Collection
from urllib.parse import urlsplit

_PUBLIC = "https://huggingface.co"


def endpoint_of(stated: str | None) -> str:
    """Return the URL of the model hub: `stated` (the operator's setting), else the environment variable HF_ENDPOINT,
    else https://huggingface.co.
    """
    return stated or os.environ.get("HF_ENDPOINT") or _PUBLIC


def check_endpoint(stated: str | None, hosts: Collection[str]) -> None:
    """Reject an address of the hub that the service could not, or may not, request.

    Raises:
        ValueError: the address is not http(s)://HOST, contains a user name or password, or its host is not allowed.
    """
    url = urlsplit(endpoint_of(stated))
    # The value is not repeated: it may hold a password.
    if url.scheme not in ("http", "https") or not url.hostname or url.username is not None:
        raise ValueError(
            "hub_endpoint must be https://HOST without a password; correct SHARDTUNE_HUB_ENDPOINT or HF_ENDPOINT"
        )
    if url.hostname not in hosts:
        raise ValueError(
            f"hub_hosts ({', '.join(hosts)}) must contain {url.hostname}, the host of hub_endpoint; add it to "
            "SHARDTUNE_HUB_HOSTS"
        )
