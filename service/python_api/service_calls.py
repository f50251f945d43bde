"""Connect a program to a service, with the errors of the command line."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shardtune.service.cli import connection
from shardtune.service.cli.options import DEFAULT_SERVICE
from shardtune.service.client import ServiceClient
from shardtune.service.python_api.failures import python_errors

ADDRESS_VARIABLE = "SHARDTUNE_SERVICE_URL"
ServiceLike = str | ServiceClient
"""Address of a Shardtune service, or a client for it."""
_REMEDY = "check that it runs there, or name another with service="


def open_client(service: ServiceLike | None, key_file: str | Path | None = None) -> ServiceClient:
    """Return a client; no request is sent yet.

    `service`: by default the address in `SHARDTUNE_SERVICE_URL`, or without this variable the default address of
    `shardtune serve`. `key_file`: file with the API key; by default the key of `SHARDTUNE_API_KEY` or
    `SHARDTUNE_API_KEY_FILE`.

    Raises:
        InputError: the key's file cannot be read.
    """
    if isinstance(service, ServiceClient):
        return service
    with python_errors():
        address = service or os.environ.get(ADDRESS_VARIABLE) or DEFAULT_SERVICE
        return connection.open_client(address, None if key_file is None else Path(key_file))


@contextmanager
def service_errors() -> Iterator[None]:
    """Convert a request that the service rejected to an `InputError`, and a service that does not answer to a
    `PlatformFailure`."""
    with python_errors(), connection.service_errors(_REMEDY):
        yield
