"""Parsing of what the service answers to a worker."""

import contextlib
from typing import TypeVar

import httpx
from pydantic import ValidationError

from shardtune.api_schemas.names import RowId
from shardtune.api_schemas.protocol import ProtocolMessage
from shardtune.api_schemas.trials.leases import AttemptNumber, Lease
from shardtune.workers.agent.client_errors import LeaseUnreadable, Unreachable

Answer = TypeVar("Answer", bound=ProtocolMessage)


class _LeaseId(ProtocolMessage):
    """Ids in a lease. Every release can read them, so that a worker can give a run back even if it cannot read the rest
    of the lease."""

    run_id: RowId
    attempt: AttemptNumber


def read_lease(response: httpx.Response) -> Lease:
    """Parse the lease that the service sent.

    Raises:
        LeaseUnreadable: the response is a lease that this release cannot read.
        Unreachable: the response is no lease.
    """
    try:
        return Lease.read(response.content)
    except ValidationError as error:
        with contextlib.suppress(ValidationError):
            lease_id = _LeaseId.read(response.content)
            raise LeaseUnreadable(lease_id.run_id, lease_id.attempt, _shorten(error)) from error
        raise _meaningless(response, Lease) from error


def expect(response: httpx.Response, answer: type[Answer]) -> Answer:
    """Parse a response of the service.

    Raises:
        Unreachable: the response is not a message of the expected kind.
    """
    try:
        return answer.read(response.content)
    except ValidationError as error:
        raise _meaningless(response, answer) from error


def _meaningless(response: httpx.Response, answer: type[ProtocolMessage]) -> Unreachable:
    # Most likely a proxy's page, which is temporary.
    return Unreachable(f"{response.request.url.path} answered something that is no {answer.__name__}")


def _shorten(error: ValidationError) -> str:
    """Describe the first fields of a response that could not be read."""
    mistakes = error.errors(include_url=False, include_context=False, include_input=False)
    listed = "; ".join(f"{'.'.join(map(str, mistake['loc']))}: {mistake['msg']}" for mistake in mistakes[:3])
    return f"{listed}{f' and {len(mistakes) - 3} more' if len(mistakes) > 3 else ''}"[:2000]


def problem_field(response: httpx.Response, name: str) -> object:
    """Return the named field of a response that is a problem document (RFC 9457); None if the response is something
    else."""
    try:
        problem = response.json()
    except ValueError:
        return None
    return problem.get(name) if isinstance(problem, dict) else None


def detail(response: httpx.Response) -> str:
    """Field `detail` of a response that is a problem document (RFC 9457), else the start of the response's
    body."""
    try:
        problem = response.json()
    except ValueError:
        return response.text[:300]
    return str(problem.get("detail", problem))[:1000] if isinstance(problem, dict) else str(problem)[:300]
