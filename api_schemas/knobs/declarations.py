"""Knobs that a schema class declares on its fields, and what follows from them for one configuration."""

import types
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from shardtune.api_schemas.knobs.consumers import Call, Consumer, Key, Lost
from shardtune.api_schemas.knobs.knob import Knob


@cache
def knobs_by_field(model: type[BaseModel]) -> dict[str, Knob]:
    """Return the knobs that a schema class declares, by the name of their field. Kind, range and default of each knob
    are taken from the field."""
    declared = ((name, info, _declaration(info)) for name, info in model.model_fields.items())
    return {name: _completed(knob, info) for name, info, knob in declared if knob is not None}


@cache
def knobs_of(model: type[BaseModel]) -> dict[str, Knob]:
    """Return the knobs that a schema class declares, by their name in the search space. Knobs declared in the fields of
    nested values are included."""
    knobs: dict[str, Knob] = {}
    for field, knob in knobs_by_field(model).items():
        name = knob.knob or field
        knobs[name] = knob
        knobs |= {f"{name}_{part}": inner for part, inner in _parts(model.model_fields[field], knob)}
    return knobs


def backend_knobs(models: tuple[type[BaseModel], ...]) -> dict[str, Knob]:
    """Return the knobs of several schema classes by name. If several classes declare the same knob, the first
    declaration is returned."""
    return {name: knob for model in reversed(models) for name, knob in knobs_of(model).items()}


def keyed(config: BaseModel, consumer: Consumer) -> dict[str, Any]:
    """Return the fields of an exported file that take the value of a knob unchanged, each with its value. The names are
    those of `consumer`, the program that reads the file. Knobs that do not exist with the configuration's other values
    are left out."""
    return {
        statement.name: getattr(config, field)
        for field, knob in knobs_by_field(type(config)).items()
        if isinstance(statement := knob.exports.get(consumer), Key) and _exists(config, knob)
    }


def calls(config: BaseModel, consumer: Consumer) -> dict[str, Any]:
    """Return the methods of the sharded model that apply a knob in `consumer` (the program that reads an export), each
    with its argument. A knob at its default needs no call."""
    return {
        statement.method: getattr(config, field)
        for field, knob in knobs_by_field(type(config)).items()
        if isinstance(statement := knob.exports.get(consumer), Call) and getattr(config, field) != knob.default
    }


def lost_fields(config: BaseModel, consumer: Consumer) -> dict[str, Any]:
    """Return the value with which `consumer` (the program that reads an export) trains, for each field of the
    configuration that it cannot express."""
    return {
        field: knob.default if statement.runs is None else statement.runs
        for field, knob in knobs_by_field(type(config)).items()
        if isinstance(statement := knob.exports.get(consumer), Lost)
    }


def reasons(config: BaseModel, consumer: Consumer) -> dict[str, str]:
    """Return the reason why `consumer` (the program that reads an export) cannot express a setting of the
    configuration, by the name of the field."""
    return {
        field: statement.reason
        for field, knob in knobs_by_field(type(config)).items()
        if isinstance(statement := knob.exports.get(consumer), Lost)
    }


def variables(config: BaseModel) -> dict[str, str]:
    """Return the environment variables whose value is that of a knob, by the name of the variable. A knob at its
    default sets none."""
    return {
        knob.variable: str(getattr(config, field))
        for field, knob in knobs_by_field(type(config)).items()
        if knob.variable and getattr(config, field) != knob.default
    }


def phrases(config: BaseModel) -> list[str]:
    """Return the words for each knob in the one-line description of the configuration."""
    words = (knob.phrase(getattr(config, field)) for field, knob in knobs_by_field(type(config)).items())
    return [word for word in words if word]


def _exists(config: BaseModel, knob: Knob) -> bool:
    return all(getattr(config, field) in values for field, values in knob.within.items())


def _declaration(info: FieldInfo) -> Knob | None:
    return next((item for item in info.metadata if isinstance(item, Knob)), None)


def _parts(info: FieldInfo, knob: Knob) -> Iterator[tuple[str, Knob]]:
    if not knob.parts:
        return
    nested = next(kind for kind in get_args(info.annotation) if kind is not type(None))
    for name, part in knob.parts.items():
        yield name, _completed(part, nested.model_fields[name])


def _completed(knob: Knob, info: FieldInfo) -> Knob:
    """Return the knob with what the declaration of its field says: kind, allowed words, range and default."""
    kinds = _kinds(info.annotation)
    literals = [value for kind in kinds if get_origin(kind) is Literal for value in get_args(kind)]
    changes: dict[str, Any] = {"default": None if info.is_required() else info.default}
    if literals and all(isinstance(value, str) for value in literals):
        none = ("none",) if type(None) in kinds else ()
        changes |= {"kind": "word", "words": knob.words or (*literals, *none)}
    elif literals:
        changes |= {"kind": "int", "minimum": min(literals), "maximum": max(literals)}
    elif {bool, int} <= {*kinds}:
        changes["kind"] = "group"
    elif plain := next((name for kind, name in _PLAIN if kind in kinds), None):
        changes |= {"kind": plain, **_range(knob, info)}
    return replace(knob, **changes)


_PLAIN: tuple[tuple[type, str], ...] = ((bool, "bool"), (int, "int"), (float, "number"))


def _kinds(annotation: Any) -> tuple[Any, ...]:
    """Return the member types of a union; any other type is its only member."""
    return get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)


def _range(knob: Knob, info: FieldInfo) -> dict[str, float | None]:
    lowest = next((float(str(item.ge)) for item in info.metadata if isinstance(item, annotated_types.Ge)), None)
    highest = next((float(str(item.le)) for item in info.metadata if isinstance(item, annotated_types.Le)), None)
    return {
        "minimum": lowest if knob.minimum is None else knob.minimum,
        "maximum": highest if knob.maximum is None else knob.maximum,
    }
