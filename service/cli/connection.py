"""The service that a command talks to, and the study that it is about."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from api_schemas.studies import Study
from service.cli.errors import InputError, PlatformFailure
from service.cli.stack import local_service, state_directory
from service.client import ServiceClient, ServiceRefused, ServiceUnreachable


@contextmanager
def connected(service: str | None, state_dir: Path) -> Iterator[ServiceClient]:
    """The service at a URL, or one over the state directory for the length of the command."""
    try:
        if service is not None:
            with _client(service) as client:
                yield client
            return
        if not state_dir.is_dir():
            raise InputError(f"--state-dir ({state_dir}) does not exist; run `shardtune tune` first, or give --service")
        with state_directory(state_dir) as path, local_service(path) as client:
            yield client
    except ServiceRefused as refused:
        if refused.is_input_error:
            raise InputError(*refused.lines()) from None
        raise PlatformFailure(*refused.lines()) from None
    except ServiceUnreachable as error:
        raise PlatformFailure(str(error)) from None


def _client(url: str) -> ServiceClient:
    try:
        return ServiceClient(url)
    except ValueError as error:
        raise InputError(str(error)) from None


def study_named(client: ServiceClient, name: str) -> Study:
    """The study of that id, or the newest for `last`.

    Raises:
        InputError: there is none.
    """
    if name != "last":
        return _named(client, name)
    studies = client.studies()
    if not studies:
        raise InputError("study ('last'): none is stored here; run `shardtune tune` first")
    return max(studies, key=lambda study: study.created_at)


def _named(client: ServiceClient, name: str) -> Study:
    """A study by its id, with help for what is likely meant by something else."""
    try:
        return client.study(name)
    except ServiceRefused as refused:
        if refused.status != 404:
            raise
    ids = [study.study_id for study in client.studies()]
    hint = f"; for trial {name} of the last study: --which {name}" if name.isdecimal() else ""
    stored = f"it has {', '.join(ids[:5])}" + (", …" if len(ids) > 5 else "") if ids else "it has none"
    raise InputError(f"study ({name!r}) is not stored here; {stored}; `last` is the newest{hint}")
