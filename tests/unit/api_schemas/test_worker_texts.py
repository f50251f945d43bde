"""Every text in a worker's messages has a pattern, or is made printable: none moves a terminal's cursor or begins a line."""

import types
import typing
from collections.abc import Iterator
from typing import Annotated, Any, get_args, get_origin

import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError

from shardtune.api_schemas.trials.leases import Heartbeat, LeaseRequest, Registration, Report

ESCAPES = ("\x1b[2J", "\x1b]8;;file:///etc/passwd\x07", "\x9b2J", "\x07", "\x7f", "a\rb")
CLEANED = ("Registration.inventory.details",)
"""Fields whose model makes them printable itself (`test_what_a_worker_says_of_itself_is_short`)."""


def texts(annotation: Any, path: str, visited: frozenset[type]) -> Iterator[tuple[str, Any]]:
    """Each type of a text within a type, with its restrictions, and where it stands."""
    origin = get_origin(annotation)
    if origin is Annotated:
        inner, *restrictions = get_args(annotation)
        if inner is str:
            yield path, annotation
            return
        for inside, kind in texts(inner, path, visited):
            yield inside, Annotated[kind, *restrictions] if inner in (str, str | None) else kind
    elif annotation is str:
        yield path, str
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel) and annotation not in visited:
        for name, field in annotation.model_fields.items():
            whole = Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation
            yield from texts(whole, f"{path}.{name}", visited | {annotation})
    elif origin in (typing.Union, types.UnionType, tuple, list, dict, set, frozenset):
        for argument in get_args(annotation):
            yield from texts(argument, path, visited)


def worker_texts() -> list[Any]:
    items = [
        item
        for model in (Registration, LeaseRequest, Heartbeat, Report)
        for item in texts(model, model.__name__, frozenset())
    ]
    return [
        pytest.param(kind, id=f"{path}-{at}") for at, (path, kind) in enumerate(items) if not path.startswith(CLEANED)
    ]


@pytest.mark.parametrize("kind", worker_texts())
def test_no_text_of_a_worker_keeps_a_control_character(kind: Any) -> None:
    for escape in ESCAPES:
        try:
            accepted = TypeAdapter(kind).validate_python(escape)
        except ValidationError:
            continue
        assert not set(accepted) & set("\x1b\x9b\x07\x7f\r"), ascii(accepted)
