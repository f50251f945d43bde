"""Errors of tools: each line names field, value and remedy, as everywhere in the product."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pydantic import BaseModel, ValidationError

from shardtune.api_schemas.known_fields import fields_at
from shardtune.service.client import NoService, ServiceError, ServiceRejected, ServiceUnreachable
from shardtune.service.http.validation_errors import describe_mistake, drop_union_noise, field_error, truncate

_MOST_LINES = 10


class ToolRejected(Exception):
    """Expected failure of an MCP tool call; the agent reads its lines."""

    def __init__(self, *lines: str) -> None:
        self.lines = tuple(truncate(line) for line in lines[:_MOST_LINES])
        super().__init__("\n".join(self.lines))


def mistakes_of(error: ValidationError, kind: type[BaseModel], within: str = "") -> list[str]:
    """Return a line for each wrong field of an object. `within`: name of the tool call's argument that contains the
    object."""
    items: list[Any] = drop_union_noise(error.errors(include_url=False))
    lines = [describe_mistake(field_error(item, fields_at(kind, item["loc"][:-1]))) for item in items]
    return [f"{within}.{line}" for line in lines] if within else lines


@contextmanager
def rejections(kind: type[BaseModel], within: str = "") -> Iterator[None]:
    """Convert every expected failure of a tool to a `ToolRejected`. `kind`: schema of the validated input. `within`:
    name of the tool call's argument that contains the input."""
    try:
        yield
    except ValidationError as error:
        raise ToolRejected(*mistakes_of(error, kind, within)) from None
    except ServiceRejected as rejected:
        raise ToolRejected(*rejected.lines()) from None
    except (ServiceUnreachable, NoService) as error:
        raise ToolRejected(f"{error}; check that the service runs, or name another with --service") from None
    except ServiceError as error:
        # A request that cannot be sent, such as one with too many lengths for an address.
        raise ToolRejected(str(error)) from None
    except ArithmeticError:
        raise ToolRejected(
            "the numbers of this call are too large or too small to compute with; correct tokens, prices or dimensions"
        ) from None
    except ValueError as error:
        raise ToolRejected(str(error)) from None
