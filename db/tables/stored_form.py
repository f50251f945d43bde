"""Stored form of schema values: JSON without the fields that are absent, so that a former release can read it.

A field that a release adds has an absent default (None, False, zero or empty), by the rule of docs/how-to/upgrade.md.
Schemas reject fields that they do not know, so a value that names such a field without using it would be unreadable for
a replica of the former release, on the same database, for nothing. A value that does use the field stays unreadable
there: read without the field it would mean something else.
"""

from functools import lru_cache
from typing import Any

from pydantic import BaseModel, TypeAdapter

from shardtune.api_schemas.protocol import models_within


def stored_form(adapter: TypeAdapter[Any], value: object) -> Any:
    """Return a value in JSON form without the fields that have their default, if that default is None, False, zero or
    empty."""
    content = adapter.dump_python(value, mode="json")
    for model, inner in models_within(value, content):
        _leave_out_absent(model, inner)
    return content


def _leave_out_absent(model: BaseModel, content: dict[str, Any]) -> None:
    absent = _fields_absent_by_default(type(model))
    for name in type(model).model_fields:
        if name not in content:
            continue
        value = getattr(model, name)
        if name in absent and value == absent[name] and type(value) is type(absent[name]):
            del content[name]
            continue
        for inner, inner_content in models_within(value, content[name]):
            _leave_out_absent(inner, inner_content)


@lru_cache(1024)
def _fields_absent_by_default(model: type[BaseModel]) -> dict[str, object]:
    """Fields of a schema whose default is None, False, zero or empty, each with that default."""
    defaults = {
        name: field.get_default(call_default_factory=True, validated_data={})
        for name, field in model.model_fields.items()
        if not field.is_required()
    }
    return {name: default for name, default in defaults.items() if not default}
