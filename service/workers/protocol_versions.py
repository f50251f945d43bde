"""Agree on a protocol version with a worker, and write responses in the version of the request."""

from typing import TypeVar

from fastapi.responses import JSONResponse

from shardtune import __version__
from shardtune.api_schemas.protocol import (
    PROTOCOL_VERSION,
    SPOKEN,
    ProtocolMessage,
    VersionRange,
    agreed_version,
    is_readable,
)
from shardtune.api_schemas.trials.leases import Registration
from shardtune.service.http.errors import WrongProtocol

Answer = TypeVar("Answer", bound=ProtocolMessage)


def agree(registration: Registration) -> int:
    """Return the newest protocol version that both a worker and this service support.

    Raises:
        WrongProtocol: they have no version in common; the message names the versions of both sides and the side to
            upgrade.
    """
    newest = registration.protocol_version
    worker = VersionRange(registration.oldest_protocol_version or newest, newest)
    agreed = agreed_version(worker)
    if agreed is None:
        release = f"shardtune {registration.release}" if registration.release else "unknown release"
        remedy = (
            f"install shardtune {__version__} on the worker"
            if newest < SPOKEN.oldest
            else f"upgrade the service to the worker's release, or install shardtune {__version__} on the worker"
        )
        raise WrongProtocol(
            "protocol_version",
            f"protocol_version ({worker}) of worker {registration.name} ({release}) has no version in common with "
            f"{SPOKEN} of the service (shardtune {__version__}); {remedy}",
        )
    return agreed


def check_protocol(version: int) -> None:
    """Reject a message of a worker that is written in a protocol version which the service cannot read, although both
    agreed on a version before.

    Raises:
        WrongProtocol: the message names both versions. The worker then registers again, and both sides agree on a
            version anew.
    """
    if not is_readable(version):
        raise WrongProtocol(
            "protocol_version",
            f"protocol_version ({version}) cannot be read by a service that speaks {SPOKEN} (shardtune {__version__}); "
            "register anew with POST /v1/workers, or install the service's release on the worker",
        )


def written_for(version: int, answer: Answer) -> Answer | JSONResponse:
    """Return a response in the protocol version in which its request was written."""
    # The framework serializes the present version itself, which is faster.
    return answer if version >= PROTOCOL_VERSION else JSONResponse(answer.written_for(version))
