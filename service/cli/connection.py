"""The service that a command talks to, and the study that it is about."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from shardtune.api_schemas.access.credentials import KeySource
from shardtune.api_schemas.studies.study import Study
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
def connected(service: str | None, state_dir: Path, key_file: Path | None = None) -> Iterator[api.ServiceClient]:
    """The service at a URL, or one over the state directory for the length of the command."""
    if service is not None:
        with running(service, key_file) as client:
            yield client
        return
    if not state_dir.is_dir():
        raise InputError(f"--state-dir ({state_dir}) does not exist; run `shardtune tune` first, or give --service")
    with _errors(), local_stack.state_directory(state_dir) as path, local_stack.local_service(path) as client:
        yield client


@contextmanager
def running(service: str, key_file: Path | None = None) -> Iterator[api.ServiceClient]:
    """The service at a URL."""
    remedy = "check that it runs there, or name another with --service"
    if service == DEFAULT_SERVICE:
        remedy = (
            "start it with `shardtune serve` (with the --state-dir that `tune` had), or name another with --service"
        )
    with _errors(remedy), _client(service, key_file) as client:
        yield client


@contextmanager
def _errors(where_silent: str = "see logs/service.log in the state directory") -> Iterator[None]:
    """What the service rejects is bad input; what it cannot do is the platform's failure. `where_silent`: the remedy there."""
    try:
        yield
    except api.ServiceRejected as rejected:
        if rejected.is_input_error:
            raise InputError(*rejected.lines()) from None
        raise PlatformFailure(*rejected.lines()) from None
    except api.ServiceUnreachable as error:
        raise PlatformFailure(f"{error}; {where_silent}") from None


def _client(url: str, key_file: Path | None) -> api.ServiceClient:
    try:
        return api.ServiceClient(url, api_key=KeySource(file=key_file) if key_file else None)
    except ValueError as error:
        raise InputError(str(error)) from None


def study_named(client: api.ServiceClient, name: str) -> Study:
    """The study of that id, or the newest for `last`.

    Raises:
        InputError: there is none.
    """
    if name != "last":
        return _named(client, name)
    newest = client.studies(at_most=1)
    if not newest:
        raise InputError("study ('last'): none is stored here; run `shardtune tune` first")
    return newest[0]


def _named(client: api.ServiceClient, name: str) -> Study:
    """A study by its id, with help for what is likely meant by something else."""
    try:
        return client.study(name)
    except api.ServiceRejected as rejected:
        if rejected.status != 404:
            raise
    ids = [study.study_id for study in client.studies(at_most=6)]
    hint = f"; for trial {name} of the last study: --which {name}" if name.isdecimal() else ""
    stored = f"it has {', '.join(ids[:5])}" + (", …" if len(ids) > 5 else "") if ids else "it has none"
    raise InputError(f"study ({name!r}) is not stored here; {stored}; `last` is the newest{hint}")
