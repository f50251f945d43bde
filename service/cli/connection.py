"""Connect a command to a service, and find the study that the command names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from shardtune.api_schemas.access.credentials import KeySource
from shardtune.api_schemas.studies.study import Study
from shardtune.service.cli import read
from shardtune.service.cli.errors import InputError, PlatformFailure
from shardtune.service.cli.lazy_module import LazyModule
from shardtune.service.cli.options import DEFAULT_SERVICE

if TYPE_CHECKING:
    from shardtune.service import client as api
    from shardtune.service.cli import local_stack
else:
    api = LazyModule("shardtune.service.client")
    local_stack = LazyModule("shardtune.service.cli.local_stack")


@contextmanager
def connect_or_start(service: str | None, state_dir: Path, key_file: Path | None = None) -> Iterator[api.ServiceClient]:
    """Connect to the service at a URL. Without a URL, start a service on the state directory; it ends with the
    command."""
    if service is not None:
        with connect(service, key_file) as client:
            yield client
        return
    if not read.is_folder(state_dir):
        raise InputError(f"--state-dir ({state_dir}) does not exist; run `shardtune tune` first, or give --service")
    # Locked first: two commands would write the same logs/service.log, and two `tune`s the same worker folder.
    with service_errors(), local_stack.state_directory(state_dir) as path, local_stack.local_service(path) as client:
        yield client


@contextmanager
def connect(service: str, key_file: Path | None = None) -> Iterator[api.ServiceClient]:
    """Connect to the service at a URL."""
    remedy = "check that it runs there, or name another with --service"
    if service == DEFAULT_SERVICE:
        remedy = "start it with `shardtune serve` (with the --state-dir of `tune`), or name another with --service"
    with service_errors(remedy), open_client(service, key_file) as client:
        yield client


@contextmanager
def service_errors(remedy: str = "see logs/service.log in the state directory") -> Iterator[None]:
    """Convert a rejected request to an input error, and an unreachable service to a platform failure whose message
    holds `remedy`."""
    try:
        yield
    except api.ServiceRejected as rejected:
        if rejected.is_input_error:
            raise InputError(*rejected.lines()) from None
        raise PlatformFailure(*rejected.lines()) from None
    except (api.ServiceUnreachable, api.NoService) as error:
        raise PlatformFailure(f"{error}; {remedy}") from None
    except api.ServiceError as error:
        # A request that cannot be sent, such as one with too many lengths for an address.
        raise InputError(str(error)) from None


def open_client(url: str, key_file: Path | None) -> api.ServiceClient:
    """Prepare a client; no request is sent yet.

    Raises:
        InputError: the key's file cannot be read.
    """
    try:
        return api.ServiceClient(url, api_key=KeySource(file=key_file) if key_file else None)
    except ValueError as error:
        raise InputError(str(error)) from None


def find_study(client: api.ServiceClient, name: str) -> Study:
    """Find a study by its id, or the newest study for `last`.

    Raises:
        InputError: there is no such study.
    """
    if name != "last":
        return _study_by_id(client, name)
    newest = client.studies(at_most=1)
    if not newest:
        raise InputError("study ('last'): no study is stored here; run `shardtune tune` first")
    return newest[0]


def _study_by_id(client: api.ServiceClient, name: str) -> Study:
    """Find a study by its id. If the id is unknown, the error suggests what the user may have meant."""
    try:
        return client.study(name)
    except api.ServiceRejected as rejected:
        if rejected.status != 404:
            raise
    # Six, to show five and know whether there are more.
    ids = [study.study_id for study in client.studies(at_most=6)]
    hint = f"; for trial {name} of the last study: --which {name}" if name.isdecimal() else ""
    stored = (
        f"the newest {'is' if len(ids) == 1 else 'are'} {', '.join(ids[:5])}" + (", …" if len(ids) > 5 else "")
        if ids
        else "no study is"
    )
    raise InputError(f"study ({name!r}) is not stored here; {stored}; `last` stands for the newest{hint}")
