"""Rephrase pydantic's validation errors for users, and list the allowed fields of the object in which an error
occurred."""

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.strategies import TrialConfig

_WORDS = (
    (r"be greater than or equal to ", "be at least "),
    (r"be less than or equal to ", "be at most "),
    (r"be greater than ", "be above "),
    (r"be less than ", "be below "),
    (r"be a valid integer.*", "be a whole number"),
    (r"^Unable to parse input string as an integer, exceeded maximum size$", "must be a smaller whole number"),
    (r"be a valid number.*", "be a number"),
    (r"be a valid boolean.*", "be true or false"),
    (r"be a valid string.*", "be text"),
)
"""Phrases in pydantic's error messages, as patterns, each with the phrase that replaces it in this project's errors."""
_ARRAYS = (list, tuple, set, frozenset, Sequence)


def rephrase_error(message: str) -> str:
    """Return a pydantic error message as a predicate, such as `must be a whole number`, to which the name of the
    rejected field is the subject."""
    if message.startswith("Value error, "):
        return message.removeprefix("Value error, ")
    message = re.sub(r"^Input should\b", "must", message)
    for library_words, words in _WORDS:
        message = re.sub(library_words, words, message)
    return message[:1].lower() + message[1:]


def suggest_field(name: str, known: Sequence[str]) -> str:
    """Return a remedy for an unknown field name: the object in which this name belongs, or the closest name that is
    allowed."""
    place = _place_of_knob(name, known)
    if place is not None:
        return place
    close = difflib.get_close_matches(name, known, n=2)
    if close:
        return f"did you mean {' or '.join(close)}?"
    return f"remove it, or use one of {', '.join(known)}" if known else "remove it or correct its name"


def _place_of_knob(name: str, known: Sequence[str]) -> str | None:
    """Return the place of a setting of trials that was given in the wrong object; None if the name is no such setting.
    `known` are the names of the fields that the object has."""
    of_strategy = {field for kind in _strategies() for field in kind.model_fields} - {"kind"}
    of_config = set(TrialConfig.model_fields) - {"strategy"}
    if name in known or name not in of_strategy | of_config:
        return None
    if "knobs" in known:
        return f"did you mean knobs.{name}?"
    if "strategy" in known:
        return f"did you mean strategy.{name}?" if name in of_strategy else None
    if "kind" in known:
        return (
            f"did you mean {name} beside strategy? It belongs to the whole configuration" if name in of_config else None
        )
    if "space" in known:
        return f"did you mean space.knobs.{name}? Settings of trials are limited there, or given in baseline"
    if "global_batch" in known:
        return f"did you mean space.knobs.{name}? It is a setting of trials, not of the workload"
    return None


def _strategies() -> tuple[type[BaseModel], ...]:
    return tuple(kind for kind in _members(TrialConfig.model_fields["strategy"].annotation) if isinstance(kind, type))


def fields_at(kind: Any, path: Sequence[object]) -> list[str]:
    """Return the names of the fields that are allowed in an object within a value of this type. `path` leads to the
    object, in the form of pydantic's errors. The result is empty if the object accepts any name."""
    kinds = list(_members(kind))
    for part in path:
        kinds = [member for inner in _types_one_part_further(kinds, part) for member in _members(inner)]
    return list(dict.fromkeys(name for model in _models(kinds) for name in model.model_fields))


def model_named(name: str) -> type[Schema] | None:
    """Return the schema class whose name pydantic states in an error; None if no class has the name."""
    waiting: list[type[Schema]] = [Schema]
    while waiting:
        schema = waiting.pop()
        if schema.__name__ == name:
            return schema
        waiting += schema.__subclasses__()
    return None


def _types_one_part_further(kinds: Sequence[Any], part: object) -> list[Any]:
    """Return the types that one element of a path (field name, index or union tag) leads to from each of the given
    types."""
    if isinstance(part, int):
        return [
            item for kind in kinds if get_origin(kind) in _ARRAYS for item in get_args(kind) if item is not Ellipsis
        ]
    branch = [model for model in _models(kinds) if model.__name__ == part or part in _tags(model)]
    if branch:
        # Which member of a union it was held to be.
        return branch
    fields = [model.model_fields[part].annotation for model in _models(kinds) if part in model.model_fields]
    values = [get_args(kind)[1] for kind in kinds if get_origin(kind) in (dict, Mapping)]
    # A validator's or a list's name in the path leads nowhere.
    return fields + values or ([] if str(part).isidentifier() else list(kinds))


def _members(kind: Any) -> Iterator[Any]:
    """Yield each member of a union type without its annotations. A type that is no union is its only member."""
    if get_origin(kind) is Annotated:
        yield from _members(get_args(kind)[0])
    elif get_origin(kind) in (Union, UnionType):
        for member in get_args(kind):
            yield from _members(member)
    else:
        yield kind


def _models(kinds: Sequence[Any]) -> list[type[BaseModel]]:
    return [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]


def _tags(model: type[BaseModel]) -> tuple[object, ...]:
    """Return the values of the field `kind` with which this class is selected from a union of classes."""
    field = model.model_fields.get("kind")
    return get_args(field.annotation) if field is not None and get_origin(field.annotation) is Literal else ()
