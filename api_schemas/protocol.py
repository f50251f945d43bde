"""Versions of the worker protocol, and the base class of its messages.

Readers ignore fields that they do not know; writers leave out fields that the other side's version does not have. The
REST API for people keeps `Schema`, which rejects unknown fields, because there a typing mistake must be seen.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, Self, TypeVar

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from shardtune.api_schemas.base import Schema

PROTOCOL_VERSION = 2
"""Newest version of the worker protocol that this release speaks. It increases with every change of a message."""
OLDEST_PROTOCOL_VERSION = 1
"""Oldest version of the worker protocol that this release speaks, which is the newest of the release before."""
REQUEST_TIMEOUT_S = 5.0
"""Seconds for which a worker waits for the response to a request, in addition to the `wait_s` that the request states.
"""


class VersionRange(NamedTuple):
    """Range of protocol versions that one side (worker or service) speaks, from the oldest to the newest."""

    oldest: int
    newest: int

    def __str__(self) -> str:
        return str(self.newest) if self.oldest == self.newest else f"{self.oldest} to {self.newest}"


SPOKEN = VersionRange(OLDEST_PROTOCOL_VERSION, PROTOCOL_VERSION)
"""Range of the worker protocol's versions that this release speaks."""


def agreed_version(worker: VersionRange, service: VersionRange = SPOKEN) -> int | None:
    """Newest protocol version that both sides speak; None if there is none."""
    newest = min(worker.newest, service.newest)
    return newest if newest >= max(worker.oldest, service.oldest) else None


def is_readable(version: int, spoken: VersionRange = SPOKEN) -> bool:
    """Whether this release can read a message written in the given protocol version: one that it speaks, or the next
    one.

    The next version is included because a service may go back to its former release while workers of the newer one
    run; these workers also read the former version.
    """
    return spoken.oldest <= version <= spoken.newest + 1


@dataclass(frozen=True)
class Since:
    """Annotation of a field that a later version of the protocol added, such as `field: Annotated[int, Since(2)] = 0`."""

    version: int
    """First protocol version in which readers of the message know the field."""
    may_be_dropped: bool = False
    """Whether a reader of an older protocol version behaves correctly without the field, whatever its value. If False,
    a message in which the field differs from its default is not sent to such a reader."""


class CannotExpress(ValueError):
    """Error: a message contains something that the protocol version of its receiver cannot express."""


def expressed(value: BaseModel, version: int) -> dict[str, Any]:
    """Return a value as JSON, without those fields that the given protocol version does not have.

    Raises:
        CannotExpress: a field that the version does not have changes the meaning of the value.
    """
    content = value.model_dump(mode="json")
    _leave_out_newer_fields(value, content, version)
    return content


class ProtocolMessage(Schema):
    """Base class of the messages between workers and the service. Readers ignore unknown fields, also those of the
    values within a message."""

    model_config = ConfigDict(extra="ignore")

    @classmethod
    def read(cls, text: str | bytes) -> Self:
        """Parse the JSON text of a message from the other side.

        Raises:
            ValidationError: a field that this version needs is missing or has a wrong value.
        """
        return cls.model_validate_json(text, extra="ignore")

    def written_for(self, version: int) -> dict[str, Any]:
        """Return the message as JSON values, without the fields that a protocol version does not have.

        Raises:
            CannotExpress: a field that the version does not have changes the meaning of the message.
        """
        return expressed(self, version)


class _IgnoresUnknownFields:
    """Annotation of a request's body in the signature of a route. It makes FastAPI ignore unknown fields, as
    `ProtocolMessage.read` does."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        # The inner schema stays for the OpenAPI document; the validation below replaces it, with its messages unchanged.
        return core_schema.no_info_wrap_validator_function(
            lambda value, _: source.model_validate(value, extra="ignore"), handler(source)
        )


Message = TypeVar("Message", bound=ProtocolMessage)
Incoming = Annotated[Message, _IgnoresUnknownFields()]
"""Type of a request's body that holds a protocol message, such as `body: Incoming[Heartbeat]`."""


def _leave_out_newer_fields(value: BaseModel, content: dict[str, Any], version: int) -> None:
    """Remove the fields that are newer than a protocol version from the JSON content of a value and of all values
    nested in it."""
    for name, field in type(value).model_fields.items():
        since = next((mark for mark in field.metadata if isinstance(mark, Since)), None)
        current = getattr(value, name)
        if since is None or since.version <= version:
            for inner, inner_content in models_within(current, content[name]):
                _leave_out_newer_fields(inner, inner_content, version)
            continue
        if not since.may_be_dropped and current != field.get_default(call_default_factory=True, validated_data={}):
            raise CannotExpress(
                f"{type(value).__name__}.{name} ({current!r:.200}) came with version {since.version} of the protocol, "
                f"and the reader speaks {version}; upgrade the reader"
            )
        del content[name]


def models_within(value: Any, content: Any) -> Iterator[tuple[BaseModel, dict[str, Any]]]:
    """Yield each model (pydantic object) within a field's value, with its JSON content. Models inside these models are
    not yielded."""
    if isinstance(value, BaseModel):
        yield value, content
    elif isinstance(value, tuple | list):
        for inner, inner_content in zip(value, content, strict=True):
            yield from models_within(inner, inner_content)
    elif isinstance(value, Mapping):
        # Keys of the content are texts; both have the same order.
        for inner, inner_content in zip(value.values(), content.values(), strict=True):
            yield from models_within(inner, inner_content)
